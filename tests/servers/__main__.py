"""``python -m tests.servers``: install the servers of npm before the tests, so that none of them waits for it."""

from __future__ import annotations

import sys

from tests.servers import main

sys.exit(main())
