"""How jobs share machines, and what a plan assumes: [launch], [plan]."""

from pydantic import Field

from atoll.config.section import Section


class LaunchConfig(Section):
    """How jobs share the machine."""

    at_once: int | None = Field(None, ge=1)
    """Experts trained at the same time; by default one per GPU, or else one per core."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of each job; by default OMP_NUM_THREADS, else one, and more only where a large network has
    cores left over: threads that wait for each other suffer most from other programs."""
    store: str = ""
    """Where the run lives for several machines: s3://bucket/folder, gs://, az:// or a mounted folder."""
    patience: float = Field(300.0, gt=0)
    """Seconds for which a store may fail before a job stops, to be run again."""
    lease: float = Field(60.0, gt=0)
    """Seconds of silence after which a job elsewhere is taken for dead, and another goes on with it."""
    retries: int = Field(20, ge=0)
    """On Ray and Slurm: how often a job that was stopped or lost is started again."""
    gpus: float = Field(1.0, ge=0)
    """GPUs of each job, where there are any; a training has one rank, a process, on each of them."""
    resources: dict[str, float] = Field({}, strict=False)
    """On Ray: other resources that a job needs, as { A100 = 1 }."""
    minutes: int = Field(1440, ge=1)
    """On Slurm: the time limit of a job; it saves before that and goes on in a new one."""
    grace: int = Field(120, ge=1)
    """On Slurm: seconds before the time limit at which a job saves."""
    slurm: dict[str, str | int] = Field({}, strict=False)
    """Options of sbatch, as { partition = "gpu", account = "lab" }."""


class PlanConfig(Section):
    """What `atoll plan` assumes of data that is not there yet; training never looks at it."""

    shape: tuple[int, ...] | None = Field(None, strict=False)
    """(channels, *grid) of a sample as the networks see it; by default as far as [data] and [encode] tell."""
    samples: int | None = Field(None, ge=1)
    """How many samples there will be."""
    classes: int = Field(0, ge=0)
    """How many classes, for condition.kind = "class"."""
    text_width: int = Field(768, ge=1)
    """Width of the states of a text, for condition.kind = "text"."""
    gpu: str = "A100-80GB"
    """The device that the plan is for; `atoll plan` lists those that it knows."""
