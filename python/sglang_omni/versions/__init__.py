"""Private names of other packages, one module per package: what may break with another version of it.

The rest of the program uses public names only, which ``tests/unit/repository/test_foreign_names.py`` checks.
Two kinds stay with the part that needs them: SGLang's in ``engines/sglang/compat.py``, and transformers'
Qwen-Omni modules in ``models/omni/reference.py``, and in ``components/reference.py`` of
``models/qwen3_omni`` and ``models/qwen2_5_omni``.
"""
