"""The numbers that stages report, as a StatsMessage has them and as metrics show them."""

from __future__ import annotations

# The name of a number -> its help text. A name that ends in _total is a counter, all others are gauges.
STATS_DESCRIPTIONS = {
    "num_running_reqs": "Requests in the running batch.",
    "num_queue_reqs": "Requests that wait for a place in it.",
    "max_running_reqs": "The most requests that it runs at once.",
    "kv_used_tokens": "Tokens of the key-value cache that requests hold.",
    "kv_evictable_tokens": "Tokens of the key-value cache that are kept for later requests.",
    "max_total_num_tokens": "Tokens the key-value cache has room for.",
    "prompt_tokens_total": "Tokens of prompts.",
    "cached_tokens_total": "Tokens of prompts that were found in the cache.",
    "generation_tokens_total": "Tokens that were generated.",
    "num_retracted_requests_total": "Times a request gave its memory back to be computed again.",
    "num_items_total": "Images, clips and videos that were encoded.",
    "num_steps_total": "Steps that were run.",
    "max_batch_size": "The most requests that one step has run.",
    "cache_hits_total": "Items whose encoding was found in the cache.",
    "cache_misses_total": "Items whose encoding was not.",
    "cache_used_bytes": "Memory of the encodings in the cache.",
    "cache_max_bytes": "Memory the cache may take.",
    "relay_held_bytes": "Memory of payloads that are under way or, if shared, in their readers' use.",
    "relay_held_slots": "Payloads that are under way or, if in shared memory, in their readers' use.",
    "relay_written_bytes_total": "Bytes of payloads copied into shared memory or, of other relays, offered.",
    "relay_waits_total": "Times a payload had to wait for room.",
    "relay_quarantined_reads": "Reads that were given up and whose bytes may still arrive.",
}
