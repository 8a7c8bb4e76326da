"""The workers: deterministic history replay of workflows over run logs, under a lease. Read `machine` first."""

from towline.protocol.values import PlanItem, Proposal, Question
from towline.workers.activity_api import activity
from towline.workers.context import Context
from towline.workers.registry import Activity, RegistrationError, Retry, Workflow, workflow
from towline.workers.secrets import Secret
from towline.workers.values import (
    ActivityError,
    Artifact,
    Decision,
    ForbiddenCall,
    Info,
    Reference,
    WorkflowError,
)

__all__ = [
    "Activity",
    "ActivityError",
    "Artifact",
    "Context",
    "Decision",
    "ForbiddenCall",
    "Info",
    "PlanItem",
    "Proposal",
    "Question",
    "Reference",
    "RegistrationError",
    "Retry",
    "Secret",
    "Workflow",
    "WorkflowError",
    "activity",
    "workflow",
]
