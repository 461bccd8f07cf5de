"""What a run is: one frozen, typed tree by section, and how it is read from one TOML file."""

from atoll.config import grouping
from atoll.config.adapter import AdapterConfig, AdapterSettings
from atoll.config.checks import Facts, check
from atoll.config.component import ComponentConfig
from atoll.config.credit import CreditConfig
from atoll.config.data import (
    OWN_FEATURES,
    ConditionConfig,
    DataConfig,
    EncodeConfig,
    PartitionConfig,
    unknown_features,
)
from atoll.config.digest import operational, settings_digest
from atoll.config.explain import did_you_mean, explain, section_of
from atoll.config.launch import LaunchConfig, PlanConfig
from atoll.config.network import NetworkConfig, ObjectiveConfig
from atoll.config.paths import EMBEDDED, anchored
from atoll.config.patterns import NAME, NAMED, STRATEGIES, STRATEGY
from atoll.config.reading import assignments, load, merged, of_section, read_toml, validate
from atoll.config.run import RunConfig
from atoll.config.sampling import (
    FEATURES,
    GUIDANCE_NUM,
    GUIDANCE_REAL,
    GUIDANCE_STEPS,
    OF_ONE_MODEL,
    EvaluateConfig,
    SampleConfig,
)
from atoll.config.section import Section
from atoll.config.student import FewStepConfig, SitesConfig, StudentConfig, Teacher
from atoll.config.training import (
    ENTRY_RANK,
    ENTRY_ROWS,
    ENTRY_SAMPLES,
    ENTRY_TIMES,
    ExpertConfig,
    OverrideConfig,
    RouterConfig,
    SharedConfig,
    StartConfig,
    TrainConfig,
)

__all__ = [
    "EMBEDDED",
    "ENTRY_RANK",
    "ENTRY_ROWS",
    "ENTRY_SAMPLES",
    "ENTRY_TIMES",
    "FEATURES",
    "GUIDANCE_NUM",
    "GUIDANCE_REAL",
    "GUIDANCE_STEPS",
    "NAME",
    "NAMED",
    "OF_ONE_MODEL",
    "OWN_FEATURES",
    "STRATEGIES",
    "STRATEGY",
    "AdapterConfig",
    "AdapterSettings",
    "ComponentConfig",
    "ConditionConfig",
    "CreditConfig",
    "DataConfig",
    "EncodeConfig",
    "EvaluateConfig",
    "ExpertConfig",
    "Facts",
    "FewStepConfig",
    "LaunchConfig",
    "NetworkConfig",
    "ObjectiveConfig",
    "OverrideConfig",
    "PartitionConfig",
    "PlanConfig",
    "RouterConfig",
    "RunConfig",
    "SampleConfig",
    "Section",
    "SharedConfig",
    "SitesConfig",
    "StartConfig",
    "StudentConfig",
    "Teacher",
    "TrainConfig",
    "anchored",
    "assignments",
    "check",
    "did_you_mean",
    "explain",
    "grouping",
    "load",
    "merged",
    "of_section",
    "operational",
    "read_toml",
    "section_of",
    "settings_digest",
    "unknown_features",
    "validate",
]
