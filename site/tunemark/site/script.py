"""Translate the arithmetic that a page shares with the command line from Python into JavaScript, so that it is written once.

The part of Python that is understood: functions, frozen dataclasses, constants, comprehensions, f-strings and plain statements; no `try`, `with`,
`match`, inheritance, `*args` or difference of sets. Anything else is refused with its line, functions that assets/python.js does not offer too. It
holds what JavaScript lacks: equality and order by value, dictionaries, and Python's formats and rounding. Integers and floats are one type in
JavaScript, so a number in an f-string needs a format unless it is an integer.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from importlib import resources

from tunemark.site.python_module import Module, NotTranslatedError, is_module

RUNTIME = "python.js"
"""Name of the asset that it begins with."""
ENTRIES = {
    "tunemark.schema.formats": (
        *("duration", "flop", "gib", "percent", "plain", "seconds_of"),
        *("significant", "tokens_in_row", "usd", "whole_number"),
    ),
    "tunemark.schema.owned_hardware": ("HOURS_PER_YEAR", "OwnedHardware"),
    "tunemark.schema.facts.cards": ("OVERSIZED", "cheapest_offer", "current_prices", "metal_bytes", "model_contradictions"),
    "tunemark.schema.facts.any_model": ("OTHER_KEYS", "config_fields", "model_of_size", "size_in_words"),
    "tunemark.schema.facts.names": ("instead_of", "key_of_model", "model_keys", "not_modelled", "with_memory"),
    "tunemark.schema.option_rates": ("Evidence", "KnownRate", "LOOPS", "cautions", "rates_for", "rates_on_stack", "usual_startup_s"),
    "tunemark.schema.throughput": ("Effects",),
    "tunemark.schema.recommendation": ("OWN", "Offer", "Question", "Rate", "places_of", "recommend"),
    "tunemark.schema.recommendation_words": ("with_software", "with_stack"),
    "tunemark.site.answer": ("answer_html",),
}
"""Module -> what the scripts of the pages use of it."""
SCRIPTS = {"formats.js": tuple(ENTRIES)[:3], "recommendation.js": tuple(ENTRIES)}
"""Script -> its modules: the home page loads the second one, other pages the first."""
OFFERED = "tunemark.schema.errors"
"""Module whose names python.js offers."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED = _words("""
    arguments break case catch class const continue debugger default delete do else enum eval export extends finally for function if implements
    import in instanceof interface let new null package private protected public py return static super switch this throw try typeof undefined
    var void while with yield
""")
FUNCTIONS = _words("""
    TunemarkError ValueError abs all any bool dict did_you_mean enumerate escape float frozenset getattr id int isinstance iter len list log map
    math max min next product range re replace round set sorted str sum tuple zip math.ceil math.exp math.floor math.hypot math.inf math.isclose
    math.log math.log10 math.log2 math.sqrt re.escape re.finditer re.fullmatch re.split
""")
METHODS = _words("""
    add append bit_length capitalize count format fromkeys get index is_integer items join keys lower partition removeprefix replace setdefault split
    startswith strip values
""")
"""What python.js offers; a test compares them."""
OF_DICTIONARIES = _words("add fromkeys get items keys setdefault values")
"""Those of dictionaries and sets; the others are of lists and texts."""
MOST_ARGUMENTS = {"strip": 0} | dict.fromkeys(_words("enumerate format log math.log split startswith sum"), 1)
MOST_ARGUMENTS |= dict.fromkeys(_words("getattr map range replace"), 2)
"""Fewer than Python has."""
UNREAD = frozenset({"formula"})
"""Fields that no page reads, and variables of their names: the words for the figures of a ledger would take half of the time of a page."""
FORMAT = re.compile(r"0?\d*,?d|,|0?\d*,?(\.\d+)?f|(\.\d+)?g|\.\d+%")
ERROR_FIELDS = ("field", "value", "fix")
OPERATORS = {ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
CALLED = {ast.Add: "add", ast.Mod: "mod", ast.FloorDiv: "floordiv", ast.BitOr: "merged", ast.BitAnd: "common"}
ORDERS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
BOOLEAN = frozenset({"all", "any", "isinstance"})
"""Functions that return True or False."""


def script(name: str) -> str:
    """Return a script that pages load: python.js and the translation of its modules."""
    runtime = resources.files("tunemark.site").joinpath("assets", RUNTIME).read_text(encoding="utf-8")
    return runtime + translated({module: ENTRIES[module] for module in SCRIPTS[name]})


def translated(entries: Mapping[str, Sequence[str]] = ENTRIES) -> str:
    """Return a script that defines `globalThis.tunemark`: an object for each module with the names asked for.

    Raises NotTranslatedError with the file and the line.
    """
    modules: dict[str, Module] = {}
    needed: dict[str, set[str]] = {}
    for module, names in entries.items():
        for name in names:
            _collect(modules, needed, module, name)
    before = {
        name: sorted({part for other in modules[name].imports.values() for part in (other[0], ".".join(other))} & set(modules))
        for name in sorted(modules)
    }
    order = list(TopologicalSorter(before).static_order())
    if len(set(map(_short, order))) < len(order):
        raise NotTranslatedError(f"two modules have one name: {', '.join(sorted(order))}")
    lines = [f"  const ${_short(name)} = {_Writer(modules, modules[name]).module(needed[name])};" for name in order]
    names = ", ".join(f"{_short(name)}: ${_short(name)}" for name in order)
    return "\n".join(
        ["globalThis.tunemark = (() => {", "  const py = globalThis.tunemarkPython;", *lines, f"  return {{ {names} }};", "})();", ""]
    )


def _collect(modules: dict[str, Module], needed: dict[str, set[str]], module_name: str, name: str) -> None:
    """Add a definition and all that it uses."""
    module = modules.setdefault(module_name, Module(module_name))
    if name not in module.definitions:
        raise NotTranslatedError(f"{module_name} does not define {name}")
    needed.setdefault(module_name, set()).add(name)
    for used in _used(module.definitions[name]):
        place = module.place(used)
        if place and place[0] != OFFERED and place[1] not in needed.get(place[0], ()) and not is_module(".".join(place)):
            _collect(modules, needed, *place)


def _used(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the names and attributes that a definition reads, without those of annotations and decorators."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node
    skipped = {"annotation", "returns", "decorator_list", "type_params"}
    for name, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            if name not in skipped and isinstance(each, ast.AST):
                yield from _used(each)


def _short(module: str) -> str:
    return module.rpartition(".")[2]


def _name(name: str) -> str:
    return f"{name}_" if name in RESERVED else name


def _braces(parts: Iterable[str]) -> str:
    """Return statements in braces, indented."""
    return "{\n" + "\n".join(f"  {line}" for part in parts for line in part.split("\n")) + "\n}"


def _text(text: str) -> str:
    """Return the inside of a template literal."""
    return text.replace("\\", "\\\\").replace("`", "\\`").replace("${", "\\${").replace("\n", "\\n")


def _pattern(node: ast.expr) -> str:
    """Return the target of an assignment or a loop."""
    if isinstance(node, ast.Tuple | ast.List):
        return f"[{', '.join(map(_pattern, node.elts))}]"
    if isinstance(node, ast.Starred):
        return f"...{_pattern(node.value)}"
    if isinstance(node, ast.Name):
        return _name(node.id)
    raise NotTranslatedError(f"line {node.lineno}: a target that is not a name: {ast.unparse(node)}")


@dataclass
class _Writer:
    """Writes the definitions of one module."""

    modules: Mapping[str, Module]
    at: Module
    me: str | None = None
    """Name of `self` or `cls` in the method that is written."""
    local: set[str] = field(default_factory=set)
    """Names of the function that is written and of those around it."""
    bound: frozenset[str] = frozenset()
    """Names of the methods of the class that is written."""

    # Definitions

    def module(self, names: set[str]) -> str:
        """Return an object with definitions of the module, in the order of the source."""
        nodes = dict.fromkeys(node for name, node in self.at.definitions.items() if name in names)
        shown = ", ".join(name for name, node in self.at.definitions.items() if node in nodes)
        return f"(() => {_braces([*map(self.definition, nodes), f'return {{ {shown} }};'])})()"

    def definition(self, node: ast.stmt) -> str:
        """Return a function, a class or a constant of the module."""
        if isinstance(node, ast.FunctionDef):
            made = self.function(node, "function")
            # Of one argument, which is compared by identity: a model or a plan.
            return f"const {_name(node.name)} = py.kept({made});" if node.decorator_list and len(node.args.args) == 1 else made
        if isinstance(node, ast.ClassDef):
            return self.data_class(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            inner = _Writer(self.modules, self.at, local=_bound(node.value))
            return f"const {_pattern(target)} = {inner.expression(node.value)};"
        raise self.unknown(node)

    def data_class(self, node: ast.ClassDef) -> str:
        """Return a dataclass: its fields in order, its properties and methods."""
        if node.bases or "dataclass" not in "".join(map(ast.unparse, node.decorator_list)):
            raise self.unknown(node)
        names, values = _fields(node), [each.value for each in node.body if isinstance(each, ast.AnnAssign)]
        given = [_name(name) + (f" = {self.default(value)}" if value else "") for name, value in zip(names, values, strict=True)]
        stored = " ".join(f"this.{name} = {_name(name)};" for name in names)
        bound = frozenset(each.name for each in node.body if isinstance(each, ast.FunctionDef) and not each.decorator_list)
        # A copy is not checked again. Assigned one by one, its fields are found as fast as those of the original.
        copied = " ".join(f"made.{name} = this.{name};" for name in names)
        parts = [
            f"static fields = {list(names)!r};",
            f"constructor({', '.join(given)}) {{ {stored} this.__post_init__?.(); }}",
            f"copy() {{ const made = Object.create({node.name}.prototype); {copied} return made; }}",
        ]
        for each in node.body:
            if isinstance(each, ast.FunctionDef):
                decorators = [ast.unparse(decorator) for decorator in each.decorator_list]
                if decorators not in ([], ["property"], ["classmethod"]):
                    raise self.unknown(each)
                kind = {"property": "get", "classmethod": "static"}[decorators[0]] if decorators else ""
                parts.append(_Writer(self.modules, self.at, each.args.args[0].arg, bound=bound).function(each, kind))
        return f"class {node.name} {_braces(parts)}"

    def default(self, node: ast.expr) -> str:
        """Return the default of a field."""
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
            return f"py.{ast.unparse(node.keywords[0].value)}([])"
        return self.expression(node)

    def function(self, node: ast.FunctionDef, kind: str) -> str:
        """Return a function or a method; a generator if it yields."""
        arguments = node.args
        cached = all(ast.unparse(each).startswith(("cache", "lru_cache")) for each in node.decorator_list)
        if arguments.kwarg or not (cached or self.me):
            raise self.unknown(node)
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1 if self.me else 0 :]
        positional = arguments.defaults
        first = len(arguments.args) - (1 if self.me else 0) - len(positional)
        defaults: list[ast.expr | None] = [*[None] * first, *positional, *arguments.kw_defaults]
        written = [_name(each.arg) + (f" = {self.expression(value)}" if value else "") for each, value in zip(given, defaults, strict=True)]
        written += [f"...{arguments.vararg.arg}"] if arguments.vararg else []
        own = list(_own_nodes(node))
        stored = dict.fromkeys(each.id for each in own if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
        # A variable belongs to the whole function in Python.
        variables = ", ".join(_name(name) for name in stored if name not in {each.arg for each in given})
        inner = _Writer(self.modules, self.at, self.me, self.local | _bound(node), self.bound)
        yields = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own)
        head = f"{kind}{'*' if yields else ''} {_name(node.name)}({', '.join(written)})".strip()
        return f"{head} {_braces([*([f'let {variables};'] if variables else []), *inner.block(node.body)])}"

    # Statements

    def block(self, nodes: Iterable[ast.stmt]) -> list[str]:
        """Return statements, docstrings left out."""
        return [self.statement(node) for node in nodes if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]

    def statement(self, node: ast.stmt) -> str:  # noqa: C901 - a case for each kind of statement
        """Return a statement."""
        match node:
            case ast.Return(value):
                return f"return {self.expression(value) if value else 'null'};"
            case ast.Expr(value):
                return f"{self.expression(value)};"
            case ast.Assign([target], value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                return f"{self.assigned(target, 'null' if ast.unparse(target) in UNREAD else self.expression(value))};"
            case ast.AugAssign(target, operator, value):
                return f"{self.assigned(target, self.binary(target, operator, value))};"
            case ast.If(test, body, otherwise):
                rest = f" else {_braces(self.block(otherwise))}" if otherwise else ""
                return f"if ({self.test(test)}) {_braces(self.block(body))}{rest}"
            case ast.For(target, iterated, body, []):
                return f"for ({_pattern(target)} of py.seq({self.expression(iterated)})) {_braces(self.block(body))}"
            case ast.While(test, body, []):
                return f"while ({self.test(test)}) {_braces(self.block(body))}"
            case ast.Raise(ast.Call() as made):
                return f"throw {self.expression(made)};"
            case ast.Continue() | ast.Break() | ast.Pass():
                return f"{'' if isinstance(node, ast.Pass) else type(node).__name__.lower()};"
            case ast.FunctionDef():
                return _Writer(self.modules, self.at, None, self.local).function(node, "function")
        raise self.unknown(node)

    def assigned(self, target: ast.expr, value: str) -> str:
        """Return an assignment to a name, to names, or to a place in a list or dictionary."""
        if isinstance(target, ast.Subscript):
            return f"py.put({self.expression(target.value)}, {self.expression(target.slice)}, {value})"
        return f"{_pattern(target)} = {value if isinstance(target, ast.Name) else f'py.seq({value})'}"

    # Expressions

    def test(self, node: ast.expr) -> str:
        """Return a condition: true where Python's truth of the value is."""
        if isinstance(node, ast.BoolOp):
            return f"({(' && ' if isinstance(node.op, ast.And) else ' || ').join(map(self.test, node.values))})"
        return self.expression(node) if _is_boolean(node) else f"py.truth({self.expression(node)})"

    def expression(self, node: ast.expr) -> str:  # noqa: C901, PLR0911, PLR0912 - a case for each kind of expression
        """Return an expression."""
        match node:
            case ast.Constant(value):
                return self.constant(node, value)
            case ast.Name() | ast.Attribute():
                return self.name(node)
            case ast.Tuple(elements) | ast.List(elements):
                return f"[{self.listed(elements)}]"
            case ast.Set(elements):
                return f"py.set([{self.listed(elements)}])"
            case ast.Starred(value):
                return f"...py.seq({self.expression(value)})"
            case ast.Dict(keys, values):
                pairs = [
                    f"[{self.expression(k)}, {self.expression(v)}]" if k else f"...py.dict({self.expression(v)}).items()"
                    for k, v in zip(keys, values, strict=True)
                ]
                return f"py.dict([{', '.join(pairs)}])"
            case ast.ListComp(element, loops) | ast.GeneratorExp(element, loops):
                return self.loops(element, loops)
            case ast.SetComp(element, loops):
                return f"py.set({self.loops(element, loops)})"
            case ast.DictComp(key, value, loops):
                return f"py.dict({self.loops(ast.Tuple([key, value]), loops)})"
            case ast.Lambda(arguments, body) if not arguments.defaults:
                return f"(({', '.join(_name(each.arg) for each in arguments.args)}) => {self.expression(body)})"
            case ast.IfExp(test, body, otherwise):
                return f"({self.test(test)} ? {self.expression(body)} : {self.expression(otherwise)})"
            case ast.BoolOp(operator, values):
                return self.chosen(node, operator, values)
            case ast.BinOp(left, operator, right):
                return self.binary(left, operator, right)
            case ast.UnaryOp(ast.UAdd() | ast.Invert(), _):
                raise self.unknown(node)
            case ast.UnaryOp(operator, operand):
                return f"!{self.test(operand)}" if isinstance(operator, ast.Not) else f"(-{self.expression(operand)})"
            case ast.Compare():
                return self.comparison(node)
            case ast.JoinedStr(parts):
                return f"`{''.join(self.formatted(part) for part in parts)}`"
            case ast.Subscript(value, ast.Slice(low, high, step)):
                if isinstance(step, ast.UnaryOp):
                    raise self.unknown(node)
                ends = ", ".join(self.expression(each) if each else "null" for each in (low, high, step))
                return f"py.slice({self.expression(value)}, {ends})"
            case ast.Subscript(ast.Name("Literal"), members):
                return self.expression(members) if isinstance(members, ast.Tuple) else f"[{self.expression(members)}]"
            case ast.Subscript(value, index):
                return f"py.at({self.expression(value)}, {self.expression(index)})"
            case ast.Call(ast.Name("any" | "all" as name), [ast.GeneratorExp(element, loops)]):
                return self.loops(element, loops, {"any": "some", "all": "every"}[name])
            case ast.Call(ast.Name("StrEnum"), [_, ast.Constant(str() as names)]):
                return f"{{ {', '.join(f'{name}: `{name.lower()}`' for name in names.split())} }}"
            case ast.Call():
                return self.call(node)
            case ast.Yield(value):
                return f"yield {self.expression(value) if value else 'null'}"
            case ast.YieldFrom(value):
                return f"yield* py.seq({self.expression(value)})"
        raise self.unknown(node)

    def constant(self, node: ast.expr, value: object) -> str:
        """Return a number, a text, true, false or null."""
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        if isinstance(value, str):
            return f"`{_text(value)}`"
        if isinstance(value, int | float):
            return repr(value)
        raise self.unknown(node)

    def name(self, node: ast.Name | ast.Attribute) -> str:
        """Return a variable, a field, a definition of this or another module, or what python.js offers."""
        place = self.place(node)
        if place and place[0] in self.modules:
            return _name(place[1]) if place[0] == self.at.name else f"${_short(place[0])}.{place[1]}"
        if isinstance(node, ast.Attribute) and not self.is_module(node.value):
            owner = self.expression(node.value)
            # The word of a vocabulary is the text itself.
            if node.attr == "value":
                return f"py.value({owner})"
            return f"{owner}.{node.attr}{'.bind(this)' if owner == 'this' and node.attr in self.bound else ''}"
        written = ast.unparse(node)
        if written == self.me:
            return "this"
        if written in self.local:
            return _name(written)
        if written not in FUNCTIONS:
            raise self.unknown(node)
        return f"py.{written}"

    def place(self, node: ast.expr) -> tuple[str, str] | None:
        """Return module and name of a definition; None for a variable."""
        first = node.value if isinstance(node, ast.Attribute) else node
        return None if isinstance(first, ast.Name) and first.id in self.local else self.at.place(node)

    def listed(self, nodes: Iterable[ast.expr]) -> str:
        return ", ".join(map(self.expression, nodes))

    def loops(self, element: ast.expr, loops: Sequence[ast.comprehension], use: str = "map") -> str:
        """Return a comprehension as a list, or its use: whether some or every element is true."""
        first, *others = loops
        target = f"({_pattern(first.target)})"
        conditions = "".join(f".filter({target} => {self.test(each)})" for each in first.ifs)
        inner = self.loops(element, others, use) if others else self.expression(element) if use == "map" else self.test(element)
        step = "flatMap" if others and use == "map" else use
        return f"py.seq({self.expression(first.iter)}){conditions}.{step}({target} => {inner})"

    def chosen(self, node: ast.expr, operator: ast.boolop, values: Sequence[ast.expr]) -> str:
        """Return the value that `and` or `or` chooses."""
        if _is_boolean(node):
            return self.test(node)
        name = "and" if isinstance(operator, ast.And) else "or"
        first, *others = values
        return f"py.{name}({self.expression(first)}, {', '.join(f'() => {self.expression(each)}' for each in others)})"

    def binary(self, left: ast.expr, operator: ast.operator, right: ast.expr) -> str:
        """Return arithmetic. Lists, texts and dictionaries can be added too."""
        if type(operator) in OPERATORS:
            if isinstance(left, ast.JoinedStr | ast.List | ast.Set | ast.Tuple) or isinstance(getattr(left, "value", None), str):
                raise self.unknown(left)
            return f"({self.expression(left)} {OPERATORS[type(operator)]} {self.expression(right)})"
        if isinstance(operator, ast.Add) and any(isinstance(each, ast.Constant | ast.JoinedStr) for each in (left, right)):
            return f"({self.expression(left)} + {self.expression(right)})"
        if type(operator) in CALLED:
            return f"py.{CALLED[type(operator)]}({self.expression(left)}, {self.expression(right)})"
        raise self.unknown(left)

    def comparison(self, node: ast.Compare) -> str:
        """Return comparisons of neighbours, all of which must hold."""
        operands = [node.left, *node.comparators]
        parts = [self.compared(left, operator, right) for left, operator, right in zip(operands, node.ops, operands[1:], strict=False)]
        return parts[0] if len(parts) == 1 else f"({' && '.join(parts)})"

    def compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> str:
        """Return a comparison of two values."""
        one, other = self.expression(left), self.expression(right)
        simple = any(isinstance(each, ast.Constant) for each in (left, right))
        match operator:
            case ast.Is() | ast.IsNot():
                # A field that was never given is undefined.
                return f"({one} {'==' if isinstance(operator, ast.Is) else '!='} {other})"
            case ast.Eq() | ast.NotEq():
                negated = isinstance(operator, ast.NotEq)
                return f"({one} {'!==' if negated else '==='} {other})" if simple else f"{'!' if negated else ''}py.eq({one}, {other})"
            case ast.In() | ast.NotIn():
                return f"{'!' if isinstance(operator, ast.NotIn) else ''}py.has({other}, {one})"
        sign = ORDERS[type(operator)]
        return f"({one} {sign} {other})" if simple else f"(py.cmp({one}, {other}) {sign} 0)"

    def formatted(self, part: ast.expr) -> str:
        """Return a part of an f-string."""
        match part:
            case ast.Constant(str() as text):
                return _text(text)
            case ast.FormattedValue(value, -1, None):
                return f"${{py.str({self.expression(value)})}}"
            case ast.FormattedValue(value, 114, None):
                return f"'${{{self.expression(value)}}}'"
            case ast.FormattedValue(value, -1, ast.JoinedStr([ast.Constant(str() as form)])) if not FORMAT.fullmatch(form):
                raise self.unknown(value)
            case ast.FormattedValue(value, -1, ast.JoinedStr() as spec):
                return f"${{py.format({self.expression(value)}, {self.expression(spec)})}}"
        raise self.unknown(part)

    def call(self, node: ast.Call) -> str:
        """Return a call. Functions of python.js take named arguments as an object; a dataclass is made from lists and objects."""
        arguments, by_name = self.listed(node.args), {each.arg: self.expression(each.value) for each in node.keywords}
        named = ", ".join(f"{name}: {value}" if name else f"...py.object({value})" for name, value in by_name.items())
        method = isinstance(node.func, ast.Attribute) and not self.is_module(node.func.value)
        last = node.func.attr if isinstance(node.func, ast.Attribute) and method else ast.unparse(node.func)
        spread = [each for each in node.keywords if each.arg is None]
        if (
            len(node.args) > MOST_ARGUMENTS.get(last, len(node.args))
            or len(spread) > 1
            or (last == "startswith" and isinstance(node.args[0], ast.Tuple))
        ):
            raise self.unknown(node)
        if last == "get_args":
            return arguments
        if isinstance(node.func, ast.Attribute) and last == "model_copy":
            return f"({{ ...{self.expression(node.func.value)}, ...py.object({by_name['update']}) }})"
        if isinstance(node.func, ast.Attribute) and method and not self.place(node.func):
            own = self.methods.get(last, set())
            # Which class a value has is not known here, so that methods of one name must have the same arguments.
            if (not own and last not in METHODS) or (node.keywords and len(own) != 1):
                raise self.unknown(node)
            given = self.given(node, next(iter(own))) if node.keywords else arguments
            if last in METHODS and last not in OF_DICTIONARIES:
                return f"py.methods.{last}({', '.join(filter(None, [self.expression(node.func.value), given]))})"
            return f"{self.expression(node.func.value)}.{last}({given})"
        called, definition = self.expression(node.func), self.defined(node.func)
        if isinstance(definition, ast.FunctionDef):
            return f"{called}({self.given(node, _arguments(definition))})"
        if isinstance(definition, ast.ClassDef) or called == "this":
            arguments = self.read(node.args, _fields(definition)) if isinstance(definition, ast.ClassDef) else arguments
            return f"py.make({called}, [{arguments}], {{ {named} }})" if named else f"new {called}({arguments})"
        if called.endswith("Error"):
            return f"new {called}({self.given(node, ERROR_FIELDS)})"
        return f"{called}({', '.join(filter(None, [arguments, f'{{ {named} }}' if named else '']))})"

    def read(self, nodes: Sequence[ast.expr], fields: Sequence[str]) -> str:
        """Return the values of fields, `null` for one that no page reads."""
        unread = [node for node, name in zip(nodes, fields, strict=False) if name in UNREAD]
        return ", ".join("null" if node in unread else self.expression(node) for node in nodes)

    def given(self, node: ast.Call, names: Sequence[str]) -> str:
        """Return the arguments of a call of our own by position."""
        by_name = {each.arg: self.expression(each.value) for each in node.keywords}
        if set(by_name) - set(names) or (by_name and any(isinstance(each, ast.Starred) for each in node.args)):
            raise self.unknown(node)
        end = max((names.index(name) + 1 for name in by_name if name), default=0)
        return ", ".join([*map(self.expression, node.args), *(by_name.get(name, "undefined") for name in names[len(node.args) : end])])

    @cached_property
    def methods(self) -> dict[str, set[tuple[str, ...]]]:
        """The methods of all dataclasses, with the names of their arguments."""
        classes = [node for module in self.modules.values() for node in module.tree.body if isinstance(node, ast.ClassDef)]
        found: dict[str, set[tuple[str, ...]]] = {}
        for each in (each for node in classes for each in node.body if isinstance(each, ast.FunctionDef)):
            found.setdefault(each.name, set()).add(_arguments(each)[1:])
        return found

    def is_module(self, node: ast.expr) -> bool:
        """Return True for the name of a module, such as `math`."""
        return isinstance(node, ast.Name) and node.id in {"math", "re"}

    def defined(self, node: ast.expr) -> ast.stmt | None:
        """Return the definition of a function or class that is called by its name."""
        module, name = self.place(node) or ("", "")
        return self.modules[module].definitions.get(name) if module in self.modules else None

    def unknown(self, node: ast.AST) -> NotTranslatedError:
        """Return the error for Python that is not translated."""
        line = getattr(node, "lineno", 0)
        return NotTranslatedError(f"{self.at.name}, line {line}: not translated: {ast.unparse(node)[:100]}")


def _fields(node: ast.ClassDef) -> list[str]:
    return [each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]


def _arguments(node: ast.FunctionDef) -> tuple[str, ...]:
    return tuple(each.arg for each in [*node.args.args, *node.args.kwonlyargs])


def _is_boolean(node: ast.expr) -> bool:
    """Return True for an expression whose value is True or False."""
    match node:
        case ast.Compare() | ast.UnaryOp(ast.Not()) | ast.Constant(bool()):
            return True
        case ast.BoolOp(_, values):
            return all(map(_is_boolean, values))
        case ast.Call(ast.Name(name)):
            return name in BOOLEAN
    return False


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions and comprehensions in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            yield from _own_nodes(child)


def _bound(node: ast.AST) -> set[str]:
    """Return all names that something in a definition binds: variables, arguments and inner functions."""
    nodes = list(ast.walk(node))
    stored = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    inner = {each.name for each in nodes if isinstance(each, ast.FunctionDef) and each is not node}
    return stored | inner | {each.arg for each in nodes if isinstance(each, ast.arg)}
