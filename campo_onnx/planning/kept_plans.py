"""A folder that keeps plans, so that another process need not plan the same graph again, or measure it.

It is a cache: whatever is wrong with it, the graph is planned, and nothing else comes of it than a warning.
"""

import json
import logging
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import CampoError
from campo_onnx.files import make_folder, read_bytes, refuse_special, write_text
from campo_onnx.files.codec import fingerprint
from campo_onnx.ir.importer import Imported
from campo_onnx.ops.registry import REGISTRY, current
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import best_form, flat_weights_of, forms_for, planned
from campo_onnx.version import VERSION, source_digest

_LOG = logging.getLogger(__name__)


def planned_once(imported: Imported, options: Options, folder: Path | None) -> tuple[Plan, ModelProto]:
    """Plan a graph, or take the plan that an earlier process left in a folder, and execute it.

    A file that is damaged, of another version, or that cannot be executed is replaced. Plans whose costs are
    looked up or measured on this machine are not kept, since those may change while the options do not.

    Raises CampoError for anything wrong with the graph or the options, never for the
    folder.
    """
    if folder is None or not _is_repeatable(options):
        return _executed(imported, planned(imported, options))
    name = name_of(imported, options)
    path = folder / name
    try:
        return _executed(imported, _read(path, imported, options))
    except FileNotFoundError:
        pass
    except Exception as error:  # a cache must not end a training, whatever its files hold
        _LOG.debug("the plan %s is not used", path, exc_info=error)
    plan = planned(imported, options)
    _keep(plan.to_json(), folder, name)
    return _executed(imported, plan)


def name_of(imported: Imported, options: Options) -> str:
    """File name for the plan of a graph with some options, the same in every process.

    Everything that may change the plan counts: the graph with its stamp and what was low in its file (two
    files may be one graph once they are raised), every option, and the rules: our version, the package's
    source, and onnx, whose schemas say which tensors change type.
    """
    question = {
        "asked": identity_of(options),
        "stamp": imported.stamp,
        "is_raised": imported.as_given is not None,
        "low_as_given": sorted(imported.low_as_given),
        "flat_weights": flat_weights_of(imported.view, options),
    }
    return f"{imported.digest}-{fingerprint(question)}.json"


def identity_of(options: Options) -> str:
    """Identify everything beside the graph that a plan follows from: options, and the rules."""
    return fingerprint(
        {
            "rules": [VERSION, source_digest(), onnx.__version__],
            "options": {
                field.name: getattr(options, field.name)
                for field in fields(options)
                if field.name not in ("evidence", "flat_weights")
            },
            "evidence": _content_of(options.evidence),
        }
    )


def form_once(imported: Imported, options: Options, folder: Path | None) -> Imported:
    """Bring a graph into the form to plan: both are planned, unless an earlier process kept the choice."""
    forms = forms_for(imported, options)
    if len(forms) == 1 or folder is None or not _is_repeatable(options):
        return best_form(forms, options)
    name = f"form-{name_of(forms[0], options)}"
    try:
        refuse_special(folder / name)
        place: int = json.loads(read_bytes(folder / name, title=f"the form {name}"))["form"]
        return forms[place]
    except Exception as error:  # as for plans
        _LOG.debug("the form %s is not used", name, exc_info=error)
    best = best_form(forms, options)
    _keep(json.dumps({"format_version": 1, "form": forms.index(best)}), folder, name)
    return best


def _keep(text: str, folder: Path, name: str) -> None:
    try:
        make_folder(folder, remedy="Choose another folder for plans.")
        write_text(text, folder / name, follows_links=False)
    except (CampoError, OSError, ValueError) as error:  # ValueError: a null character in the path
        _warn_once(folder, str(error))


def _content_of(evidence: Evidence) -> dict[str, Any]:
    profile, store = evidence.profile, evidence.store
    return {
        "calibration": evidence.calibration,
        "profile": None if profile is None else profile.to_json(),
        "store": None if store is None else str(store.path),
        "threads": evidence.threads,
    }


def _is_repeatable(options: Options) -> bool:
    """Whether the options alone say what a graph's nodes take, and which operators there are."""
    says_costs = options.costs is CostSource.DATASHEET or (
        options.costs is not CostSource.MEASURE and options.evidence.calibration is not None
    )
    return says_costs and current() is REGISTRY


def _read(path: Path, imported: Imported, options: Options) -> Plan:
    path.stat()  # a FileNotFoundError is the usual case
    refuse_special(path)
    title = f"the plan {path}"
    plan = Plan.from_json(read_bytes(path, title=title), title=title)
    plan.check_fits(imported)
    if imported.stamp is None and (plan.strategy, plan.lists, plan.low) != (
        options.strategy,
        options.lists.name,
        options.low,
    ):
        raise ValueError(f"{title} was decided with other options")
    return plan


def _executed(imported: Imported, plan: Plan) -> tuple[Plan, ModelProto]:
    return plan, rewrite(imported, plan) if plan.low_nodes else imported.model


@cache
def _warn_once(folder: Path, why: str) -> None:
    _LOG.warning("plans are not kept in %s: %s", folder, why)
