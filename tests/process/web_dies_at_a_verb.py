"""`lastword web` in a process that is killed at one verb of the store, as `dies_at_a_verb` says."""

from importlib import import_module

from channels.__main__ import main

import_module("dies_at_a_verb")  # beside this file, where the process finds it

main()
