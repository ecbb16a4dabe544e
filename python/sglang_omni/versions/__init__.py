"""Private names of other packages, one module per package: what may break with another version of it.

The rest of the program uses public names only, which ``tests/unit/test_foreign_names.py`` checks. Two kinds
stay with the part that needs them: SGLang's in ``engines/sglang/compat.py``, and transformers' Qwen3-Omni
modules in ``models/qwen3_omni/components/reference.py``.
"""
