"""Tunemark: which accelerator to fine-tune a model on, how long it takes, and what it costs.

The names of `__all__` are imported on first use, so that `import tunemark` loads no library. In a checkout the package has four
source folders, which are joined here; a wheel has one.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunemark.collector.api import Estimate as Estimate
    from tunemark.collector.api import derive as derive
    from tunemark.collector.api import estimate as estimate
    from tunemark.collector.api import load_results as load_results
    from tunemark.collector.api import recommend as recommend
    from tunemark.collector.api import validate as validate
    from tunemark.harness.trainer_callback import TunemarkCallback as TunemarkCallback

__path__ = pkgutil.extend_path(__path__, __name__)
if __spec__ is not None and len(__path__) > 1:
    # Joined folders are a namespace without a place of its own; import-linter asks for this.
    __spec__.has_location = False
from tunemark.schema import VERSION

__version__ = VERSION
__all__ = ["Estimate", "TunemarkCallback", "derive", "estimate", "load_results", "recommend", "validate"]
_MODULES = dict.fromkeys(__all__, "tunemark.collector.api") | {"TunemarkCallback": "tunemark.harness.trainer_callback"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names above
    """Import a name of the API on first use."""
    if name not in _MODULES:
        msg = f"module 'tunemark' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_MODULES[name]), name)
