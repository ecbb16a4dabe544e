"""What each route answers and sends, for docs/reference/http-api.md: models tell only what it takes."""

from __future__ import annotations

GROUPS = {
    "Conversations and text": (
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /generate",
        "POST /v1/responses",
        "GET /v1/responses/{response_id}",
        "DELETE /v1/responses/{response_id}",
        "POST /v1/responses/{response_id}/cancel",
        "GET /v1/responses/{response_id}/input_items",
        "POST /tokenize",
        "POST /detokenize",
        "POST /v1/embeddings",
    ),
    "Speech and transcripts": (
        "POST /v1/audio/speech",
        "POST /v1/audio/speech/batch",
        "WS /v1/audio/speech/stream",
        "GET /v1/audio/voices",
        "POST /v1/audio/voices",
        "GET /v1/audio/voices/{name}",
        "DELETE /v1/audio/voices/{name}",
        "POST /v1/audio/transcriptions",
        "POST /v1/audio/translations",
        "WS /v1/audio/transcriptions/stream",
    ),
    "Realtime": (
        "WS /v1/realtime",
        "POST /v1/realtime/client_secrets",
        "POST /v1/realtime/calls",
        "POST /v1/realtime/calls/{call_id}/hangup",
    ),
    "State": (
        "GET /health",
        "GET /ping",
        "POST /ping",
        "GET /health_generate",
        "GET /v1/models",
        "GET /v1/models/{name}",
        "GET /model_info",
        "GET /get_model_info",
        "GET /version",
        "GET /metrics",
        "GET /get_load",
        "GET /pipeline",
        "GET /pipeline/load",
        "GET /pipeline/requests",
        "GET /traces/{request_id}",
    ),
    "Administration": (
        "POST /abort_request",
        "POST /flush_cache",
        "GET /get_server_info",
        "POST /start_profile",
        "POST /stop_profile",
    ),
}
_MODEL = (
    "`model_path`, `served_model_name`, `tasks`, `input_modalities`, `output_modalities`, "
    "`voices`, `random_weights`."
)
_TRANSCRIPT = (
    "the text, as `response_format` says. With `stream`: the events `transcript.text.delta` with "
    "`delta`, then "
    "`transcript.text.done` with the whole."
)
ANSWERS = {
    "POST /v1/chat/completions": (
        "OpenAI's `chat.completion`; speech is in `choices[].message.audio`. With `stream`: "
        "`chat.completion.chunk` "
        "events, then `[DONE]`; an error is an event with `error`, and the last one."
    ),
    "POST /v1/completions": "OpenAI's `text_completion`. With `stream`: events of the same, then `[DONE]`.",
    "POST /generate": (
        "`text`, `output_ids`, `meta_info`; a list of such if there are several prompts or "
        "answers. With `stream`: events of the same, each with the whole so far, then `[DONE]`."
    ),
    "POST /v1/responses": (
        "OpenAI's `response`. With `stream`: `response.created`, `response.in_progress`, for each item "
        "`response.output_item.added`, its parts and deltas, `response.output_item.done`; at the end "
        "`response.completed`, `response.incomplete` or `response.failed`."
    ),
    "GET /v1/responses/{response_id}": (
        "the `response`; 404 if it is not kept here. `stream` and `starting_after` are refused."
    ),
    "DELETE /v1/responses/{response_id}": "`deleted`.",
    "POST /v1/responses/{response_id}/cancel": "the `response`; 400 if it is not being written.",
    "GET /v1/responses/{response_id}/input_items": (
        "a list of items; `has_more` says whether others follow `last_id`."
    ),
    "POST /tokenize": "`tokens`, `count`, `max_model_len` and, if asked for, `token_strs`.",
    "POST /detokenize": "`prompt`, the text.",
    "POST /v1/embeddings": "a 400 in every case.",
    "POST /v1/audio/speech": (
        "the sound file, with its rate in `X-Sample-Rate` and its end in `X-Finish-Reason`. With "
        '`stream_format: "sse"`: '
        "the events `speech.audio.delta` with `audio` (base64) and `sample_rate`, then "
        "`speech.audio.done` with `usage`. With `timestamp_granularities`: JSON with `audio` (base64), "
        "`format`, `sample_rate`, `duration`, `granularity` and `words`; the events have `words` too."
    ),
    "POST /v1/audio/speech/batch": (
        "`results`, one for each item in their order, with `status`, `audio_data` (base64), `media_type` and "
        "`sample_rate`, or `error`; `total`, `succeeded`, `failed`."
    ),
    "WS /v1/audio/speech/stream": "Speak text as it comes. Messages are JSON; sound comes in binary frames.",
    "WS /v1/audio/transcriptions/stream": (
        "Write down what is said while it is said. Sound comes in binary frames: little-endian 16-bit "
        "samples, mono."
    ),
    "GET /v1/audio/voices": (
        "`voices`, `languages`, which is null if the pipeline does not tell, and `uploaded_voices`."
    ),
    "POST /v1/audio/voices": "OpenAI's object: `id`, `object`, `name`, `created_at`, `type`.",
    "GET /v1/audio/voices/{name}": "that object, with `consent`, `ref_text`, `seconds` and `usable`.",
    "DELETE /v1/audio/voices/{name}": "`id`, `object`, `deleted`; a 404 if the caller has no such voice.",
    "POST /v1/audio/transcriptions": _TRANSCRIPT,
    "POST /v1/audio/translations": _TRANSCRIPT,
    "WS /v1/realtime": (
        "Converse by events. In the query: `model`, and `intent=transcription` for a session that "
        "only writes down "
        "what it hears. Every event is a JSON object with `type`; a client may add `event_id`, which "
        "an error repeats."
    ),
    "POST /v1/realtime/client_secrets": "`value`, the key; `expires_at`, in Unix seconds; `session`.",
    "POST /v1/realtime/calls": (
        "201 with an SDP answer, and the call in `Location`. The body is an SDP offer as "
        "`application/sdp`, or a form "
        "with `sdp` and the JSON object `session`."
    ),
    "POST /v1/realtime/calls/{call_id}/hangup": "200 without a body; 404 if no such call goes on here.",
    "GET /health": (
        "200 or 503 with `status`: `healthy`, `busy`, `degraded` or `unhealthy`, and what is wrong."
    ),
    "GET /ping": "the status alone.",
    "POST /ping": "the status alone.",
    "GET /health_generate": "200 if the request succeeds, else its error.",
    "GET /v1/models": "OpenAI's list, and in each entry `max_model_len`, the most tokens of a prompt "
    "and its answer; null for a model that is not asked by tokens, or whose tokens are counted elsewhere.",
    "GET /v1/models/{name}": "OpenAI's `model`; 404 if it is not served.",
    "GET /model_info": _MODEL,
    "GET /get_model_info": f"the same: {_MODEL}",
    "GET /version": "`version`.",
    "GET /metrics": "text; [every metric](../observability.md#metrics).",
    "GET /get_load": "`num_reqs`, `num_waiting_reqs`, and the numbers of requests by state.",
    "GET /pipeline": (
        "the stages, the edges, and their places in a drawing; 404 if the server was given no graph."
    ),
    "GET /pipeline/load": (
        "`requests` by state, and for each of the `stages` what it holds, runs and has done."
    ),
    "GET /pipeline/requests": (
        "`requests`: where each is, and its `visits` to stages with seconds of work and of waiting."
    ),
    "GET /traces/{request_id}": (
        "a [trace](../observability.md#one-request) in Chrome's format; 404 if it is not known."
    ),
    "POST /abort_request": "`success`: whether such a request ran; `request_id`.",
    "POST /flush_cache": "200 with a line of text.",
    "GET /get_server_info": "the config, `version`, `uptime_s`, `health`, `load`, and where things run.",
    "POST /start_profile": (
        "`profile_id` and `output_dir`, where [it](../observability.md#profiles) will be; 409 if one "
        "runs. The body may "
        "be left out."
    ),
    "POST /stop_profile": "`file`, the trace; with `activities` also `torch_files`; 409 if no profile runs.",
}
SERVER_EVENTS = {
    "/v1/audio/speech/stream": {
        "audio.start": (
            "a sentence begins: `utterance_index`, `sentence_index`, `sentence_text`, `format`, `sample_rate`"
            ", and in an utterance's first one `warnings`, if there are any"
        ),
        "audio.delta": 'its sound as `audio` (base64), with `audio_frames: "base64"`',
        "audio.words": (
            "with `timestamp_granularities`, when each of its words is spoken: `granularity`, `words`"
        ),
        "audio.done": "it is spoken: `total_bytes`, `finish_reason`; `error: true` if it failed",
        "session.done": "the utterance is spoken: `total_sentences`, `usage`",
        "session.cancelled": "the answer to `session.cancel`",
        "error": "`error`, OpenAI's object; the session goes on",
    },
    "/v1/audio/transcriptions/stream": {
        "transcript.text.delta": (
            "new text as `delta`, never taken back; with `segments: true` new `segments`"
        ),
        "transcript.text.done": (
            "the whole as `text`, and `usage`; with `segments: true` also `language`, `duration`, `task`"
        ),
        "error": "`error`, OpenAI's object; the connection ends",
    },
    "/v1/realtime": {
        "session.created": "the `session` as it begins",
        "session.updated": "the `session` after a change",
        "input_audio_buffer.speech_started": "a speaker began: `audio_start_ms`, `item_id` of the turn",
        "input_audio_buffer.speech_stopped": "a speaker ended: `audio_end_ms`, `item_id`",
        "input_audio_buffer.timeout_triggered": (
            "`idle_timeout_ms` of silence became a turn: where, and `item_id`"
        ),
        "input_audio_buffer.committed": "the buffer became the item `item_id`, after `previous_item_id`",
        "input_audio_buffer.cleared": "the buffer is empty",
        "output_audio_buffer.started": "over WebRTC: an answer begins to be heard",
        "output_audio_buffer.stopped": "over WebRTC: it has been heard",
        "output_audio_buffer.cleared": "over WebRTC: it was cut",
        "conversation.item.added": "an `item` is there, and may still grow",
        "conversation.item.done": "the `item` is complete",
        "conversation.item.retrieved": "the `item`, with its sound",
        "conversation.item.deleted": "`item_id` is gone",
        "conversation.item.truncated": (
            "`item_id` was cut at `audio_end_ms`; `transcript` is what was heard of it"
        ),
        "conversation.item.input_audio_transcription.delta": "what was heard of an item, a piece: `delta`",
        "conversation.item.input_audio_transcription.completed": "the whole: `transcript`, `usage`",
        "conversation.item.input_audio_transcription.failed": "it could not be heard: `error`",
        "response.created": "an answer begins: `response`",
        "response.output_item.added": "an item of it begins: `item`, `output_index`",
        "response.content_part.added": "a part of an item begins: `part`, `content_index`",
        "response.output_text.delta": "written text, a piece: `delta`",
        "response.output_text.done": "the whole: `text`",
        "response.output_audio.delta": "sound in the session's output format: `delta` (base64)",
        "response.output_audio.words": (
            "with `timestamp_granularities`, when each word is spoken: `granularity`, `words`"
        ),
        "response.output_audio.done": "all of it was sent",
        "response.output_audio_transcript.delta": "what the sound says, a piece: `delta`",
        "response.output_audio_transcript.done": "the whole: `transcript`",
        "response.function_call_arguments.delta": "arguments of a call, a piece: `delta`",
        "response.function_call_arguments.done": "the whole: `arguments`, `call_id`, `name`",
        "response.content_part.done": "a part is complete: `part`",
        "response.output_item.done": "an item is complete: `item`",
        "response.done": "the answer is complete, or ended: `response` with `status`, `output`, `usage`",
        "error": "`error`, OpenAI's object with `event_id`; the session goes on",
    },
}
