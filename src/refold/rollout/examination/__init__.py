"""Examination: what a rollout file is, what is odd in it, and a repaired copy (docs/doctor.md).

Public names: examine, Examination, Finding, KINDS (examine.py, findings.py, kinds.py); plan_repair, repair (repair.py).
"""

from __future__ import annotations

from refold.rollout.examination.examine import Examination, examine
from refold.rollout.examination.findings import Finding
from refold.rollout.examination.kinds import KINDS, Kind
from refold.rollout.examination.repair import Repair, plan_repair, repair

__all__ = ["KINDS", "Examination", "Finding", "Kind", "Repair", "examine", "plan_repair", "repair"]
