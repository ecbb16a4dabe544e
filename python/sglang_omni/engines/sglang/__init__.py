"""SGLang's own scheduler and KV cache behind ``engines.base.Engine``.

Nothing here is imported before an engine of this kind is built: importing SGLang takes 20 s.
"""
