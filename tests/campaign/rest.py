"""What is held at rest, which is nothing."""

from __future__ import annotations

from sglang_omni.pipeline.coordinator import Coordinator


def left_in(coordinator: Coordinator) -> list[str]:
    """What a coordinator holds although no request runs."""
    return [
        f"the coordinator {what}: {held}"
        for what, held in (
            ("has requests", list(coordinator._requests.running)),
            ("knows wire ids", list(coordinator._by_wire_id)),
            ("counts", coordinator._counts._counts),
            ("settles", list(coordinator._settling._requests)),
            ("has stages down", coordinator.health()["down_stages"]),
        )
        if held
    ]
