"""What the family is, for `sgl-omni models`, `serve` and `make-tiny-checkpoint`. It imports no torch."""

from sglang_omni.families import Family

FAMILY = Family(
    name="my_family",
    config="my_family.config:MyFamilyPipelineConfig",
    architectures=("MyFamilyModel",),
    tasks=("speech",),
    takes=("text",),
    gives=("audio",),
    engines=("omni", "sglang"),
    maker="my_family.tiny_checkpoint:make",
    proved_against="a plain loop: codes, samples",
)
