"""Reads optimum-neuron's training API by ast, without importing it: fields, parameters, attributes, keywords.

python tests/harness/neuron_api.py WHEEL_OR_SITE_PACKAGES > tests/harness/data/optimum_neuron_api.json
"""

import ast
import importlib.util
import json
import sys
import zipfile
from pathlib import Path

FIXTURE = Path(__file__).parent / "data" / "optimum_neuron_api.json"
CLASSES = {
    "NeuronTrainingArguments": "optimum/neuron/trainers/training_args.py",
    "NeuronTrainer": "optimum/neuron/trainers/transformers.py",
    "TrainingNeuronConfig": "optimum/neuron/models/training/config.py",
    "NeuronModelMixin": "optimum/neuron/models/training/modeling_utils.py",
    "_BaseNeuronModelClass": "optimum/neuron/models/training/modeling_auto.py",
}
FUNCTIONS = {"get_peft_model": "optimum/neuron/peft/mapping_func.py"}
MODELS = "optimum/neuron/models/training/auto_models.py"
EXPORTS = "optimum/neuron/__init__.py"


def read_api(read):
    """Return the API as plain data; `read` returns the text of a file of the package."""
    api = {name: of_class(find(read(path), name)) for name, path in CLASSES.items()}
    api |= {name: parameters(find(read(path), name)) for name, path in FUNCTIONS.items()}
    api["causal_lm_families"] = sorted(
        node.args[0].value
        for node in ast.walk(ast.parse(read(MODELS)))
        if isinstance(node, ast.Call) and len(node.args) == 2 and getattr(node.args[1], "value", None) == "text-generation"
    )
    api["exports"] = sorted(
        {node.value for node in ast.walk(ast.parse(read(EXPORTS))) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        & set(CLASSES)
    )
    return api


def find(text, name):
    return next(node for node in ast.parse(text).body if getattr(node, "name", None) == name)


def of_class(node):
    """Return fields, parameters of each public method and `__init__`, attributes set on self, and keywords taken out of `kwargs`."""
    methods = [
        item for item in node.body if isinstance(item, ast.FunctionDef) and (item.name == "__init__" or not item.name.startswith("_"))
    ]
    return {
        "fields": [item.target.id for item in node.body if isinstance(item, ast.AnnAssign)],
        "methods": {method.name: parameters(method) for method in methods},
        "attributes": sorted(
            {
                item.attr
                for item in ast.walk(node)
                if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store) and ast.unparse(item.value) == "self"
            }
        ),
        "keywords": sorted(
            {
                item.args[0].value
                for item in ast.walk(node)
                if isinstance(item, ast.Call) and ast.unparse(item.func) == "kwargs.pop" and isinstance(item.args[0], ast.Constant)
            }
        ),
        "callbacks": sorted(
            {
                item.func.attr
                for item in ast.walk(node)
                if isinstance(item, ast.Call) and ast.unparse(item.func).startswith("self.callback_handler.on_")
            }
        ),
    }


def parameters(node):
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def reader(place):
    """Return what reads a file of the package, out of a wheel or a folder that holds `optimum`."""
    if zipfile.is_zipfile(place):
        archive = zipfile.ZipFile(place)
        return lambda path: archive.read(path).decode()
    return lambda path: (Path(place) / path).read_text(encoding="utf-8")


def installed():
    """Return the folder that holds the installed package, or None."""
    try:
        found = importlib.util.find_spec("optimum.neuron")
    except ModuleNotFoundError:
        return None
    return Path(found.origin).parents[2] if found and found.origin else None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_api(reader(sys.argv[1])), indent=1) + "\n")
