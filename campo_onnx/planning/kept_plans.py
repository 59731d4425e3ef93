"""A folder that keeps plans, so that the same graph is not planned again with the same options."""

import hashlib
from pathlib import Path

from onnx import ModelProto

from campo_onnx.errors import CampoError
from campo_onnx.files import make_folder, read_bytes, write_text
from campo_onnx.ir.importer import Imported
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide, problem_of


def planned_once(given: Imported, options: Options, folder: Path | None) -> tuple[Plan, ModelProto]:
    """Execute the plan of a graph that a folder has, or make one and put it there.

    A plan that is damaged, of another version, or that cannot be executed is made again.

    Parameters
    ----------
    given
        The graph.
    options
        What to decide with.
    folder
        Where plans are kept; None for nowhere.
    """
    path = None if folder is None else folder / name_of(given, options)
    if path is not None and path.exists():
        try:
            title = f"the plan {path}"
            plan = Plan.from_json(read_bytes(path, title=title), title=title)
            plan.check_fits(given)
            return plan, _executed(given, plan)
        except CampoError:
            pass
    plan = decide(problem_of(given, options), given, options)
    if path is not None:
        make_folder(path.parent, remedy="Choose another folder for plans.")
        write_text(plan.to_json(), path)
    return plan, _executed(given, plan)


def name_of(given: Imported, options: Options) -> str:
    """Name of the file for a graph and options: those that may lead to different plans tell files apart."""
    parts = (
        *(options.device, options.lists, options.strategy, options.low, options.keep_fp32),
        *(options.min_gain, options.may_pad, options.pad_threshold_us),
        *(["flat weights"] if options.flat_weights else []),
    )
    text = "\n".join(map(str, parts))
    return f"{given.digest}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.json"


def _executed(given: Imported, plan: Plan) -> ModelProto:
    return rewrite(given, plan) if plan.low_nodes else given.model
