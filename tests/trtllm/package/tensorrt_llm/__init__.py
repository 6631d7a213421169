"""Loads the double in a process that has the folder above on its PYTHONPATH."""

import sys

from tests.trtllm.double import made

_modules = made().modules
sys.modules.update({name: module for name, module in _modules.items() if name != __name__})
globals().update({name: value for name, value in vars(_modules[__name__]).items() if not name.startswith("__")})
