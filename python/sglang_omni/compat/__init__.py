"""Private names of other packages, a module for each: all that a change of theirs without notice can break.

Everywhere else only public names are used, which ``tests/unit/test_foreign_names.py`` checks. What belongs to
one part of the program stays with it: SGLang's in ``engines/sglang/compat.py``, Qwen3-Omni's modules in
transformers in ``models/qwen3_omni/components/reference.py``.
"""
