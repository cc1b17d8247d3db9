"""What a tool answered becomes what a model reads, whatever the server sent."""

from __future__ import annotations

import base64
import json
import struct
import time
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.types import CallToolResult, ImageContent, TextContent

from openprogram_mcp.adapter import AgentToolResult, convert_call_result, error_result, protocol_error_result


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _png(width: int = 1, height: int = 1, padding: int = 0) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0"))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"tEXt", b"k\0" + b"x" * padding) + pixels + chunk(b"IEND", b"")


PNG = _b64(_png())
JPEG = _b64(b"\xff\xd8\xff\xe0" + b"\0\x10JFIF\0" + b"\0" * 20 + b"\xff\xd9")
GIF = _b64(b"GIF89a\x01\0\x01\0\0\0\0;")
WEBP = _b64(b"RIFF\x1a\0\0\0WEBPVP8L" + b"\0" * 14)
SVG = _b64(b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><circle r="4"/></svg>')


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(data: Any, mime: Any = "image/png") -> AgentToolResult:
    return convert_call_result({"content": [{"type": "image", "data": data, "mimeType": mime}]})


def _one(block: Any) -> str:
    """The text of a result of one block, which must have become one text."""
    result = convert_call_result({"content": [block]})
    assert [part["type"] for part in result.content] == ["text"]
    return result.text


# --- Text and details ------------------------------------------------------------------------------------------------


def test_a_text_is_passed_on_with_who_said_it() -> None:
    result = convert_call_result({"content": [_text("hello")], "isError": False}, server="s", tool="t")
    assert result.content == (_text("hello"),)
    assert result.text == "hello"
    assert not result.is_error
    assert result.details == {"is_error": False, "mcp_server": "s", "mcp_tool": "t", "structured": None}


def test_several_texts_stay_several_blocks_and_read_as_lines() -> None:
    result = convert_call_result({"content": [_text("a"), _text(""), {**_text("é"), "annotations": {}}]})
    assert result.content == (_text("a"), _text("é")), "an empty text is one that model APIs refuse"
    assert result.text == "a\né"


def test_the_json_form_has_the_documented_keys() -> None:
    result = convert_call_result({"content": [_text("hello")]})
    assert result.to_dict() == {
        "content": [_text("hello")],
        "text": "hello",
        "is_error": False,
        "details": result.details,
    }


def test_a_small_meta_is_in_the_details() -> None:
    assert convert_call_result({"content": [], "_meta": {"a": 1}}).details["meta"] == {"a": 1}
    assert "meta" not in convert_call_result({"content": [], "_meta": {"a": "x" * 100_000}}).details


def test_an_object_of_the_sdk_is_read_like_its_json() -> None:
    content: list[Any] = [
        TextContent(type="text", text="x"),
        ImageContent(type="image", data=PNG, mime_type="image/jpg"),
    ]
    result = convert_call_result(CallToolResult(content=content))
    assert result.content == (_text("x"), {"type": "image", "data": PNG, "mimeType": "image/png"})
    assert convert_call_result(CallToolResult(content=[], structured_content=[])).text == "[]"
    assert convert_call_result(CallToolResult(content=[], structured_content=None)).text == "null"
    assert convert_call_result(CallToolResult(content=[])).text == ""


@pytest.mark.parametrize("raw", [None, "x", 7, [], object()])
def test_an_answer_that_is_no_object_is_an_error_result(raw: Any) -> None:
    result = convert_call_result(raw, server="s", tool="t")
    assert result.is_error
    assert result.text == "The server's answer to the call is not an object."


def test_lone_surrogates_do_not_reach_a_model() -> None:
    result = convert_call_result({"content": [_text("a\ud83d\ude00b\ud800")], "structuredContent": {"x": "\udc00"}})
    assert result.text == "a😀b\ufffd"
    assert result.details["structured"] == {"x": "\ufffd"}
    assert convert_call_result({"content": [], "structuredContent": {"x": "\udc00"}}).text == '{"x":"\ufffd"}'


# --- RESULT-01: structured content -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"id": 1}, [], 0, False, "", None, "text", {"big": 2**70}])
@pytest.mark.parametrize("content", [{}, {"content": []}, {"content": None}, {"content": [_text(" \n")]}])
def test_result_01_structured_content_alone_is_shown_as_its_json(value: Any, content: dict[str, Any]) -> None:
    result = convert_call_result({**content, "structuredContent": value, "isError": False})
    assert [block["type"] for block in result.content] == ["text"]
    assert json.loads(result.text) == value
    assert result.details["structured"] == value
    assert not result.is_error


def test_result_01_an_empty_list_is_told_as_such_and_not_as_nothing() -> None:
    assert convert_call_result({"content": [], "structuredContent": []}).text == "[]"


@pytest.mark.parametrize("text", ['{"id":1}', '{\n  "id": 1\n}', "One thing."])
def test_result_01_with_both_the_content_is_shown_once(text: str) -> None:
    result = convert_call_result({"content": [_text(text)], "structuredContent": {"id": 1}})
    assert result.content == (_text(text),)
    assert result.details["structured"] == {"id": 1}


def test_result_01_an_image_is_content_too() -> None:
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    assert convert_call_result({"content": [image], "structuredContent": {"id": 1}}).content == (image,)


def test_nothing_at_all_is_nothing_and_no_error() -> None:
    result = convert_call_result({})
    assert (result.content, result.text, result.is_error) == ((), "", False)


# --- RESULT-03: images -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "true_type"), [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")]
)
@pytest.mark.parametrize("label", ["image/png", "image/jpg", "image/svg+xml", "IMAGE/PNG", "", None, 7])
def test_result_03_an_images_type_is_what_its_first_bytes_say(data: str, true_type: str, label: Any) -> None:
    assert _image(data, label).content == ({"type": "image", "data": data, "mimeType": true_type},)


def test_result_03_a_missing_type_is_found() -> None:
    result = convert_call_result({"content": [{"type": "image", "data": JPEG}]})
    assert result.content[0]["mimeType"] == "image/jpeg"


@pytest.mark.parametrize(
    "data",
    [
        f"data:image/png;base64,{PNG}",
        f"DATA:;base64,{PNG}",
        PNG.rstrip("="),
        "\r\n".join(PNG[start : start + 76] for start in range(0, len(PNG), 76)),
        base64.urlsafe_b64encode(_png()).decode(),
    ],
)
def test_result_03_base64_in_another_form_is_put_right(data: str) -> None:
    assert _image(data).content == ({"type": "image", "data": PNG, "mimeType": "image/png"},)


@pytest.mark.parametrize(
    ("data", "label", "said"),
    [
        ("", "image/png", "it has no data; image/png"),
        (None, "image/png", "it has no data; image/png"),
        ({"x": 1}, "image/png", "it has no data; image/png"),
        ("data:image/png;base64,", "image/png", "it has no data; image/png"),
        ("not base64!", "image/png", "its data is not base64; image/png"),
        ("é" * 9, "image/png", "its data is not base64; image/png"),
        (_b64(b"\x89PNG"), "image/png", "it is not a PNG, JPEG, GIF or WebP image; image/png, 4 bytes"),
        (_b64(b"BM" + b"\0" * 50), "image/png", "models take only PNG, JPEG, GIF and WebP; image/bmp, 52 bytes"),
        (_b64(b"%PDF-1.7"), "image/webp", "models take only PNG, JPEG, GIF and WebP; application/pdf, 8 bytes"),
        (_b64(b"<html>"), None, "it is not a PNG, JPEG, GIF or WebP image; unknown type, 6 bytes"),
        (_b64(_png()[:-20]), "image/png", "it is cut off; image/png"),
        (_b64(_png(9000, 10)), "image/png", "it is 9000 x 10 pixels, over the limit of 8000 a side; image/png"),
        (
            _b64(b"GIF89a" + struct.pack("<HH", 10, 9000)),
            "image/gif",
            "it is 10 x 9000 pixels, over the limit of 8000 a",
        ),
        (_b64(b"RIFF\x24\0\0\0WAVEfmt "), "image/webp", "it is not a PNG, JPEG, GIF or WebP image; image/webp, 16"),
        (_b64(_png(padding=4_000_000)), "image/png", "it is over the limit of 3,932,160 bytes; image/png, 4,0"),
    ],
)
def test_result_03_an_image_that_no_model_takes_becomes_a_note(data: Any, label: Any, said: str) -> None:
    text = _one({"type": "image", "data": data, "mimeType": label})
    assert text.startswith(f"[Image left out: {said}")


@pytest.mark.parametrize("start", [b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a\x01"])
def test_result_03_a_header_that_is_not_there_says_nothing_against_an_image(start: bytes) -> None:
    assert _image(_b64(start)).content[0]["type"] == "image"


def test_result_03_an_image_of_30_mb_becomes_a_note_quickly() -> None:
    data = _b64(b"\x89PNG\r\n\x1a\n" + bytes(30_000_000))
    started = time.perf_counter()
    text = _one({"type": "image", "data": data, "mimeType": "image/png"})
    assert time.perf_counter() - started < 0.5
    assert text == "[Image left out: it is over the limit of 3,932,160 bytes; image/png, 30,000,008 bytes]"


def test_result_03_an_image_within_the_limit_as_the_apis_count_passes() -> None:
    data = _b64(_png(padding=3_900_000))
    assert 5_000_000 < len(data) <= 5 * 1024 * 1024
    assert _image(data).content[0]["data"] == data


def test_result_03_a_drawing_is_shown_as_its_source() -> None:
    text = _one({"type": "image", "data": SVG, "mimeType": "image/svg+xml"})
    assert text.startswith("[Image left out: an SVG drawing, shown as its source; image/svg+xml, 83 bytes]\n<?xml")
    assert '<circle r="4"/>' in text


def test_result_03_images_have_a_limit_together_too() -> None:
    image = {"type": "image", "data": _b64(_png(padding=3_700_000)), "mimeType": "image/png"}
    result = convert_call_result({"content": [image] * 6})
    assert [block["type"] for block in result.content] == ["image"] * 4 + ["text"] * 2
    assert "too large together" in result.text


# --- Other blocks ----------------------------------------------------------------------------------------------------


def test_audio_becomes_a_text_that_says_what_and_how_big() -> None:
    block = {"type": "audio", "data": _b64(b"RIFF" + bytes(1000)), "mimeType": "audio/wav"}
    assert _one(block) == "[Audio left out: audio/wav, 1,004 bytes]"
    assert _one({"type": "audio"}) == "[Audio left out: unknown type, size unknown]"


def test_a_resource_link_becomes_a_text_that_says_what_where_and_how_big() -> None:
    block = {
        "type": "resource_link",
        "uri": "file:///a/report.pdf",
        "name": "report.pdf",
        "title": "Report",
        "mimeType": "application/pdf",
        "size": 123456,
        "description": "Of last year.",
    }
    said = "[Resource link: file:///a/report.pdf, Report, application/pdf, 123,456 bytes]\nOf last year."
    assert _one(block) == said
    for size in ("big", -1, 1e300, None):
        bare = {"type": "resource_link", "uri": "x:y", "name": "x:y", "size": size, "description": None}
        assert _one(bare) == "[Resource link: x:y, unknown type, size unknown]"


def test_an_embedded_text_is_included_with_what_and_where_it_is() -> None:
    resource = {"uri": "file:///a.md", "mimeType": "text/markdown", "text": "# Title\nBody é"}
    said = "[Resource: file:///a.md, text/markdown, 14 characters]\n# Title\nBody é"
    assert _one({"type": "resource", "resource": resource}) == said


def test_an_embedded_blob_becomes_a_text_that_says_what_where_and_how_big() -> None:
    resource = {"uri": "file:///a.bin", "mimeType": "application/octet-stream", "blob": _b64(bytes(1234))}
    said = "[Resource, binary, left out: file:///a.bin, application/octet-stream, 1,234 bytes]"
    assert _one({"type": "resource", "resource": resource}) == said
    bare = {"type": "resource", "resource": {"blob": 7}}
    assert _one(bare) == "[Resource, binary, left out: no address, unknown type, size unknown]"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "hologram", "rays": [1, 2]},
        {"type": "resource", "resource": "x"},
        {"type": "resource", "resource": {"uri": "x:y"}},
        {"type": "resource_link", "uri": 7},
        {"type": "text", "text": 7},
        {"type": "text"},
        {"no": "type"},
        7,
        None,
        [1],
    ],
)
def test_an_unknown_block_is_shown_as_its_json(block: Any) -> None:
    assert json.loads(_one(block)) == block


def test_content_that_is_not_a_list_is_shown_all_the_same() -> None:
    assert convert_call_result({"content": "plain"}).text == "plain"
    assert convert_call_result({"content": _text("single")}).text == "single"
    assert convert_call_result({"content": ["a", "b"]}).text == "a\nb"


def test_an_endless_address_is_cut() -> None:
    text = _one({"type": "resource_link", "uri": "data:," + "x" * 1_000_000, "name": "n"})
    assert len(text) < 2200
    assert "…" in text


# --- RESULT-05: errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [[], None, [_text("")], [_text("  ")]])
def test_result_05_an_error_without_a_word_has_a_readable_text(content: Any) -> None:
    result = convert_call_result({"content": content, "isError": True})
    assert result.is_error
    assert result.details["is_error"] is True
    assert result.text.strip().startswith("The tool reported an error and gave no message.")


def test_result_05_the_servers_own_words_are_kept() -> None:
    result = convert_call_result({"content": [_text("no such file: a.txt")], "isError": True})
    assert (result.text, result.is_error) == ("no such file: a.txt", True)


def test_result_05_an_error_whose_first_block_is_no_text_has_a_readable_text() -> None:
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    result = convert_call_result({"content": [image], "isError": True})
    assert [block["type"] for block in result.content] == ["text", "image"]
    assert "error" in result.text
    assert convert_call_result({"content": [image, _text("why")], "isError": True}).text == "why"


def test_result_05_an_error_with_structured_content_alone_shows_it() -> None:
    result = convert_call_result({"content": [], "structuredContent": {"why": "full"}, "isError": True})
    assert (result.text, result.is_error) == ('{"why":"full"}', True)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ({"code": -32603, "message": "", "data": {"x": 1}}, 'error -32603 (internal error) and no message.\n{"x":1}'),
        ({"code": -32000}, "error -32000 and no message."),
        ({"code": -32602, "message": "Unknown tool: x"}, "error -32602 (invalid params): Unknown tool: x"),
        ({"code": -32602, "message": "Invalid params"}, "error -32602: Invalid params"),
        ({"code": "x", "message": 7, "data": "because"}, "error x and no message.\nbecause"),
    ],
)
def test_result_05_a_json_rpc_error_becomes_a_result_with_a_readable_text(error: dict[str, Any], text: str) -> None:
    result = protocol_error_result(error.get("code"), error.get("message"), error.get("data"), server="s", tool="t")
    assert result.text == f"The server answered with {text}"
    assert result.is_error
    assert result.details["mcp_tool"] == "t"
    assert result.details["rpc_code"] == error["code"]


def test_result_05_an_error_result_is_never_empty() -> None:
    assert error_result("  ", server="s", tool="t").text
    assert error_result("why", extra=1).details["extra"] == 1


def test_a_true_that_is_no_boolean_is_an_error_too() -> None:
    assert convert_call_result({"content": [_text("x")], "isError": "true"}).is_error
    assert convert_call_result({"content": [_text("x")], "isError": 1}).is_error
    assert not convert_call_result({"content": [_text("x")], "isError": None}).is_error


# --- RESULT-06: the budget -------------------------------------------------------------------------------------------


def test_result_06_a_text_of_10_mb_is_cut_in_the_middle_with_its_size() -> None:
    text = "a" * 5_000_000 + "b" * 5_000_000
    result = convert_call_result({"content": [_text(text)]})
    assert len(result.text) <= 100_000
    assert result.text.startswith("a" * 49_000)
    assert result.text.endswith("b" * 49_000)
    assert "\n[… 10,000,000 characters in all; the middle is left out, since the limit is 100,000 …]\n" in result.text
    assert result.details["truncated"] == {"total_chars": 10_000_000, "max_chars": 100_000}


@pytest.mark.parametrize("letter", ["x", "é"])
def test_result_06_a_text_of_just_the_limit_is_whole(letter: str) -> None:
    for number, is_cut in ((1000, False), (1001, True)):
        result = convert_call_result({"content": [_text(letter * number)]}, max_chars=1000)
        assert ("truncated" in result.details) is is_cut
        assert (result.text == letter * number) is not is_cut


def test_result_06_many_small_blocks_around_an_image_are_two() -> None:
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    texts = [_text(str(number)) for number in range(100)]
    result = convert_call_result({"content": [*texts, image, *texts, image]})
    assert [block["type"] for block in result.content] == ["text", "image", "text", "image"]
    assert result.content[2]["text"] == "\n".join(str(number) for number in range(100))


def test_result_06_the_cut_is_between_characters() -> None:
    result = convert_call_result({"content": [_text("😀" * 1000)]}, max_chars=301)
    assert set(result.text.partition("\n")[0]) == {"😀"}
    result.text.encode()


def test_result_06_five_thousand_small_blocks_are_one() -> None:
    result = convert_call_result({"content": [_text(str(number)) for number in range(5000)]})
    assert len(result.content) == 1
    assert result.text.splitlines() == [str(number) for number in range(5000)]


def test_result_06_the_budget_is_one_for_all_blocks() -> None:
    blocks = [_text(letter * 400) for letter in "abcde"]
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    result = convert_call_result({"content": [*blocks[:2], image, *blocks[2:]]}, max_chars=1000)
    assert len(result.text) <= 1000
    assert result.text.startswith("a" * 400)
    assert result.text.endswith("e" * 400)
    assert "c" * 20 not in result.text
    assert image in result.content


def test_result_06_structured_content_does_not_escape_the_budget() -> None:
    large = {"rows": ["x" * 100] * 100_000}
    result = convert_call_result({"content": [_text("done")], "structuredContent": large})
    assert result.text == "done"
    assert result.details["structured"] is None
    assert result.details["structured_omitted"] == (
        "structured content of 10,300,010 characters left out: a result has at most 100,000"
    )
    alone = convert_call_result({"content": [], "structuredContent": large})
    assert len(alone.text) <= 100_000
    assert alone.details["structured"] is None


def test_result_06_structured_content_that_the_text_repeats_counts_once() -> None:
    value = {"rows": ["x" * 600]}
    for text in (json.dumps(value), json.dumps(value, indent=2)):
        result = convert_call_result({"content": [_text(text)], "structuredContent": value}, max_chars=1000)
        assert result.details["structured"] == value
    other = convert_call_result({"content": [_text("y" * 600)], "structuredContent": value}, max_chars=1000)
    assert other.details["structured"] is None
    assert (
        convert_call_result({"content": [], "structuredContent": value}, max_chars=1000).details["structured"] == value
    )


def test_result_06_the_words_of_an_error_are_kept_within_the_budget() -> None:
    text = "Error: disk full\n" + "x" * 1_000_000
    result = convert_call_result({"content": [_text(text)], "isError": True})
    assert result.is_error
    assert result.text.startswith("Error: disk full\n")
    assert len(result.text) <= 100_000
    assert len(error_result(text).text) <= 100_000
    assert len(protocol_error_result(-32000, text, {"x": text}).text) <= 100_000


# --- SPEC-04: resultType ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"resultType": "complete"}, {"resultType": "complete", "inputRequests": {}}])
def test_spec_04_a_complete_result_is_shown_and_so_is_one_that_does_not_say(kind: dict[str, Any]) -> None:
    for extra in ({}, {"structuredContent": 1}):
        result = convert_call_result({"content": [_text("x")], **kind, **extra})
        assert (result.text, result.is_error) == ("x", False)


@pytest.mark.parametrize("kind", ["partial", "input_required", "", 7, {"a": 1}, ["complete"]])
def test_spec_04_a_result_of_an_unknown_kind_is_an_error_and_not_shown(kind: Any) -> None:
    result = convert_call_result({"content": [_text("half of it")], "resultType": kind, "structuredContent": {"a": 1}})
    assert result.is_error
    assert "half of it" not in result.text
    assert result.details["structured"] is None
    assert "resultType" in result.text


# --- Anything --------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
kinds = st.sampled_from(["text", "image", "audio", "resource", "resource_link", "tool_use"])
datas = st.sampled_from([PNG, JPEG, SVG, "", "x", "data:,x"]) | st.binary(max_size=40).map(_b64)
blocks = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {"type": kinds},
        optional={
            "text": st.text(max_size=200) | json_values,
            "data": datas | json_values,
            "mimeType": st.sampled_from(["image/png", "audio/wav"]) | json_values,
            "uri": st.just("file:///x") | json_values,
            "size": json_values,
            "resource": st.fixed_dictionaries(
                {},
                optional={"uri": json_values, "text": st.text(max_size=80) | json_values, "blob": datas | json_values},
            ),
        },
    ),
)
results = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(blocks, max_size=8) | json_values,
        "structuredContent": json_values,
        "isError": st.booleans() | json_values,
        "resultType": st.just("complete") | json_values,
        "_meta": json_values,
    },
)


@given(results, st.integers(min_value=0, max_value=400))
@settings(max_examples=400, deadline=None)
def test_whatever_a_server_answers_a_model_api_takes_it(raw: dict[str, Any], max_chars: int) -> None:
    result = convert_call_result(raw, server="s", tool="t", max_chars=max_chars)
    for block in result.content:
        if block["type"] == "text":
            assert block.keys() == {"type", "text"}
            assert block["text"] != ""
        else:
            assert block.keys() == {"type", "data", "mimeType"}
            assert block["type"] == "image"
            assert block["mimeType"] in {"image/png", "image/jpeg", "image/gif", "image/webp"}
            assert base64.b64decode(block["data"], validate=True)
    assert len(result.text) <= max(max_chars, 220), "the note of the cut, and our own words for an error, may be longer"
    assert result.details.keys() >= {"is_error", "mcp_server", "mcp_tool", "structured"}
    assert not result.is_error or result.text.strip()
    json.dumps(result.to_dict(), ensure_ascii=False).encode()


@given(st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=10), st.integers(min_value=100, max_value=500))
def test_a_cut_keeps_the_start_and_the_end(texts: list[str], max_chars: int) -> None:
    whole = "\n".join(texts)
    result = convert_call_result({"content": [_text(text) for text in texts]}, max_chars=max_chars)
    if len(whole) <= max_chars:
        assert result.text == whole
        return
    assert len(result.text) <= max_chars
    start, _, rest = result.text.partition("[… ")
    assert whole.startswith(start.removesuffix("\n").removesuffix("\n"))
    assert whole.endswith(rest.partition(" …]\n")[2].removeprefix("\n"))


def test_a_small_text_costs_a_few_microseconds() -> None:
    raw = {"content": [_text("hello")], "isError": False}
    rounds = 2000
    best = min(_seconds(raw, rounds) for _ in range(5)) / rounds
    assert best < 20e-6, "about 0.8 on the machine it was written on"


def _seconds(raw: dict[str, Any], rounds: int) -> float:
    started = time.perf_counter()
    for _ in range(rounds):
        convert_call_result(raw, server="s", tool="t")
    return time.perf_counter() - started
