"""Studies of the authors: the paper's figures in small, maps of where clipping bounds matter, exact worlds.

They import the package, which imports none of them, and are no part of the wheel.
"""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
