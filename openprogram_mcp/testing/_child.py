"""The fake server's program: ``python -S -E _child.py SCRIPT [ARGUMENT...]``. It never imports the package it is in."""

TYPE_CHECKING = False  # importing typing would cost a fifth of the start
if TYPE_CHECKING:
    from ._play.process import main
else:
    from _play.process import main  # the folder of this file is where Python looks first

if __name__ == "__main__":
    main()
