"""SGLang's own scheduler and KV cache behind ``engines.base.Engine``.

This package is imported only when such an engine is built: importing SGLang takes 20 s.
"""
