"""How the measures of a result may be compared with those that are computed again.

Most have one value. Three kinds have not, and this is the one place that knows them:

- *Sums of floating-point numbers* differ in their last digits by the order in which they were added. How much, their
  addends tell and not the sum: of `1e9 - 1e9 + 0.1` each digit may differ. Two orders of n addends are at most
  2·(n - 1)·u·Σ|addend| apart (u = 2⁻⁵³; Higham, Accuracy and Stability of Numerical Algorithms, 4.2). What is computed
  from sums inherits that: averages, variances by Welford's method (Chan, Golub, LeVeque: error by the square root of
  Σx²·M₂), and whatever an expression makes of them.
- *Choices* (`max_by`, `min_by`) may give the value of any event that ties.
- *What depends on how the events were cut* into batches and tasks (percentiles by a sketch) has no value of its own:
  it is left out of comparisons.

All is SQL of Spark, computed where results are counted again and nowhere else. A function that is not named here has
one value: maxima, counts, exact percentiles, and also `approx_count_distinct`, whose registers are maxima.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from sqlglot import exp

from spark_jobs.spec.expressions import aggregates, function_name, parse
from spark_jobs.spec.names import in_spark
from spark_jobs.spec.steps import StepSpec

MAY_BE = "__may_be_"
"""Before the name of a measure: an array of values; it may have each of them, and numbers between them. Null: any."""

MOST_TIES = 1_000
"""So many events that tie, or pairs of two choices, are told apart; of more, any value is taken for right."""

_SUMS, _MEANS = {"sum", "try_sum"}, {"avg", "mean", "try_avg"}
_VARIANCES = {"variance": 2, "variance_pop": 1}
_DEVIATIONS = {"stddev": 2, "stddev_samp": 2, "std": 2, "stddev_pop": 1}
_COVARIANCES = {"covar_samp": 2, "covar_pop": 1}
# sqlglot's names of max_by and min_by -> what gives the best of the values that they compare.
_CHOICES = {"arg_max": ("max_by", "max"), "arg_min": ("min_by", "min")}
_CUT = {"approx_quantile": "percentile_approx", "hll_sketch_agg": "hll_sketch_agg", "hll_union_agg": "hll_union_agg"}
# Sums without a bound of their own here.
_UNBOUNDED = {"skewness", "kurtosis"}
_EXACT_REGRESSIONS = {"regr_count"}

_ROUNDING = "4.5E-16D"
# A text is added up as the number that it says.
_FLOATING = ("double", "float", "string")
_EXACT_TYPES = ("decimal", "interval")

TypeOf = Callable[[str], str]
"""The type of an expression over the events, in Spark's words."""


@dataclass(frozen=True)
class Leeway:
    """The values that a measure may have.

    Attributes:
        measure: its name.
        parts: hidden column -> an aggregate, which is computed beside the measures.
        values: SQL over these columns and the measure, as `MAY_BE`.
    """

    measure: str
    parts: Mapping[str, str]
    values: str


@cache
def left_out(sql: str) -> str | None:
    """The function for which a measure has no value of its own, so that it is not compared; None: it is compared."""
    tree = parse(sql)
    choices = 0
    for node in aggregates(tree):
        name = function_name(node)
        if name in _CUT:
            return _CUT[name]
        if name in _UNBOUNDED or (name.startswith("regr_") and name not in _EXACT_REGRESSIONS):
            return name
        if isinstance(node, exp.GroupConcat) and not _orders_all(node):
            return "listagg"
        if name in _CHOICES:
            choices += 1
            if node.args.get("count") or choices > 2:
                return _CHOICES[name][0]
    return None


def not_compared(measures: Mapping[str, str]) -> Mapping[str, str]:
    """Measure -> the function for which it is not compared, of those that are not."""
    found = {name: left_out(sql) for name, sql in measures.items()}
    return {name: function for name, function in found.items() if function is not None}


def depending_on(names: Iterable[str], steps: Iterable[StepSpec]) -> frozenset[str]:
    """Columns, in lower case, and those that steps compute from them."""
    found = {name.casefold() for name in names}
    for step in steps:
        given = step.origins({name: frozenset({name}) for name in found}, None, {})
        found |= {name.casefold() for name, origins in given.items() if origins}
    return frozenset(found)


def leeways(measures: Mapping[str, str], type_of: TypeOf) -> Iterator[Leeway]:
    """Of the measures that may have several values.

    Args:
        measures: column -> aggregate.
        type_of: asks for the type of what is added up.
    """
    compared = {name: sql for name, sql in measures.items() if left_out(sql) is None}
    found = {name: list(_atoms(sql, type_of)) for name, sql in compared.items()}
    # Each sum is moved alone, and so much further that all of them together would come no further.
    several = sum(1 for atoms in found.values() for atom in atoms if isinstance(atom, _Sum))
    number = 0
    for name, atoms in found.items():
        if any(not isinstance(atom, _FixedValue) for atom in atoms):
            yield _leeway(name, measures[name], atoms, several, number)
            number += len(atoms)


@dataclass(frozen=True)
class _Sum:
    """A sum, or what is computed from some, with how far from it another order of the addends may come.

    Attributes:
        node: the function in its expression.
        slack: SQL, an aggregate.
        unless: SQL over `{slack}`, where nothing is known of it; None: it is always known.
    """

    node: exp.Expr
    slack: str
    unless: str | None = None


@dataclass(frozen=True)
class _FixedValue:
    """What has one value, beside others in one expression.

    Attributes:
        node: the function in its expression.
    """

    node: exp.Expr


@dataclass(frozen=True)
class _Choice:
    """A value of any event that ties.

    Attributes:
        node: the function in its expression.
        ties: SQL of an aggregate: the first events, with `x` and `y`.
        best: SQL of an aggregate: the `y` of those that tie.
    """

    node: exp.Expr
    ties: str
    best: str


_Atom = _Sum | _Choice | _FixedValue


def _atoms(sql: str, type_of: TypeOf) -> Iterator[_Atom]:
    """The aggregates of an expression."""
    for node in aggregates(parse(sql)):
        name, arguments = function_name(node), _arguments(node)
        condition = _condition(node)
        if name in _CHOICES:
            value, order = arguments
            where = f"({order}) IS NOT NULL" + (f" AND ({condition})" if condition else "")
            clause = f" FILTER (WHERE {where})"
            both = f"named_struct('x', {value}, 'y', {order})"
            function, best = _CHOICES[name]
            yield _Choice(node, f"{function}({both}, {order}, {MOST_TIES}){clause}", f"{best}({order}){clause}")
        else:
            yield _sum(node, name, arguments, condition, type_of) or _FixedValue(node)


def _sum(node: exp.Expr, name: str, arguments: list[str], condition: str | None, type_of: TypeOf) -> _Sum | None:
    clause = f" FILTER (WHERE {condition})" if condition else ""

    def of(function: str, argument: str) -> str:
        return f"{function}({argument}){clause}"

    if name in _SUMS | _MEANS:
        kind = type_of(arguments[0])
        if kind.startswith(_EXACT_TYPES) or (name in _SUMS and kind not in _FLOATING):
            return None
        addend = f"abs(CAST({arguments[0]} AS DOUBLE))"
        rounding = f"{_ROUNDING} * ({of('count', addend)} + 1)"
        return _Sum(node, f"{rounding} * {of('sum' if name in _SUMS else 'avg', addend)}")
    if name in _VARIANCES | _DEVIATIONS:
        x = f"CAST({arguments[0]} AS DOUBLE)"
        rounding = f"({_ROUNDING} * ({of('count', x)} + 1))"
        spread, square = of("var_pop", x), of("avg", f"{x} * {x}")
        slack = f"{rounding} * ({spread} + sqrt({spread} * {square})) + {rounding} * {rounding} * {square}"
        if name in _VARIANCES:
            return _Sum(node, f"{_VARIANCES[name]} * ({slack})")
        # Of a root: the smaller of what its slope says, and what holds at zero, where it has none.
        slack = f"{_DEVIATIONS[name]} * ({slack})"
        return _Sum(node, f"least(({slack}) / nullif({of('stddev_pop', x)}, 0), sqrt({slack}))")
    if name in _COVARIANCES or name == "corr":
        one, other = (f"CAST({argument} AS DOUBLE)" for argument in arguments)
        x = f"(CASE WHEN ({other}) IS NOT NULL THEN {one} END)"
        y = f"(CASE WHEN ({one}) IS NOT NULL THEN {other} END)"
        rounding = f"({_ROUNDING} * ({of('count', x)} + 1))"
        spreads = [of("var_pop", each) for each in (x, y)]
        squares = [of("avg", f"{each} * {each}") for each in (x, y)]
        if name == "corr":
            conditions = " + ".join(f"sqrt({q} / nullif({p}, 0))" for q, p in zip(squares, spreads, strict=True))
            return _Sum(node, f"4 * {rounding} * (1 + {conditions})", unless="coalesce({slack}, 1) >= 1")
        crossed = " + ".join(
            f"sqrt({of_x} * {of_y})"
            for of_x, of_y in ((spreads[0], spreads[1]), (squares[0], spreads[1]), (spreads[0], squares[1]))
        )
        tiny = f"{rounding} * {rounding} * sqrt({squares[0]} * {squares[1]})"
        return _Sum(node, f"{_COVARIANCES[name]} * ({rounding} * ({crossed}) + {tiny})")
    return None


def _leeway(name: str, sql: str, atoms: list[_Atom], several: int, number: int) -> Leeway:
    text, holes = _with_holes(sql, atoms)
    parts: dict[str, str] = {}
    now: dict[str, str] = {}
    moved: list[dict[str, str]] = []
    tied: dict[str, str] = {}
    unknown: list[str] = []
    combinations: list[str] = []
    for index, (atom, hole) in enumerate(zip(atoms, holes, strict=True)):
        part = f"__part_{number + index}"
        if not isinstance(atom, _Choice):
            parts[part] = _written(_whole(atom.node))
            now[hole] = part
        if isinstance(atom, _Sum):
            parts[f"{part}_slack"] = atom.slack
            slack = f"coalesce({several} * {part}_slack, 0D)"
            moved += [{hole: f"({part} - {slack})"}, {hole: f"({part} + {slack})"}]
            if atom.unless is not None:
                unknown.append(atom.unless.format(slack=f"{several} * {part}_slack"))
        if isinstance(atom, _Choice):
            parts |= {part: atom.ties, f"{part}_best": atom.best}
            # Not the best of the array itself, which Spark would look for once for each of its elements.
            ties = f"filter({part}, e -> e.y <=> {part}_best)"
            chosen = f"transform({ties}, e -> e.x)"
            # Of no event the choice is null, and the other parts have their values all the same.
            tied[hole] = f"IF(size({ties}) > 0, {chosen}, array(get({chosen}, 0)))"
            now[hole] = f"{part}_one"
            combinations.append(f"greatest(size({ties}), 1)")
    if combinations:
        unknown.append(f"{' * '.join(combinations)} >= {MOST_TIES}")
    each = [_filled(text, {**now, **change}) for change in (moved if moved else [{}])]
    values = [_for_each(f"array({', '.join(each)})", tied, now)]
    array = f"concat(array({in_spark(name)}), {', '.join(values)})"
    if unknown:
        array = f"IF({' OR '.join(unknown)}, NULL, {array})"
    return Leeway(name, parts, array)


def _for_each(values: str, tied: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The values for each combination of what ties."""
    for hole, ties in tied.items():
        values = f"flatten(transform({ties}, {now[hole]} -> {values}))"
    return values


def _with_holes(sql: str, atoms: list[_Atom]) -> tuple[str, list[str]]:
    """The expression with a name in the place of each atom, and these names."""
    found = {id(_whole(atom.node)): f"__hole_{index}" for index, atom in enumerate(atoms)}

    def hole(node: exp.Expr) -> str | None:
        return found.get(id(node))

    text = _rendered(parse(sql), hole)
    return text, [in_spark(name) for name in found.values()]


def _rendered(tree: exp.Expr, hole: Callable[[exp.Expr], str | None]) -> str:
    if (name := hole(tree)) is not None:
        return in_spark(name)
    copied = tree.copy()
    # The copy has the same nodes in the same order.
    for one, other in list(zip(tree.walk(), copied.walk(), strict=True)):
        if (name := hole(one)) is not None:
            other.replace(exp.column(exp.to_identifier(name, quoted=True)))
    return copied.sql(dialect="spark")


def _filled(text: str, holes: Mapping[str, str]) -> str:
    for hole, value in holes.items():
        text = text.replace(hole, value)
    return text


def _whole(node: exp.Expr) -> exp.Expr:
    """A function with its clauses."""
    while isinstance(node.parent, exp.Filter | exp.WithinGroup):
        node = node.parent
    return node


def _written(node: exp.Expr) -> str:
    """A function with its clauses. By itself sqlglot gives an exact percentile as an approximate one, and texts that
    are joined without a sign as joined by commas."""
    match node:
        case exp.Filter():
            return f"{_written(node.this)} FILTER ({node.expression.sql(dialect='spark').strip()})"
        case exp.WithinGroup():
            return f"{_written(node.this)} WITHIN GROUP ({node.expression.sql(dialect='spark').strip()})"
    if isinstance(node, exp.GroupConcat) and node.args.get("separator") is None:
        node = node.copy()
        node.set("separator", exp.Literal.string(""))
    return node.sql(dialect="spark")


def _condition(node: exp.Expr) -> str | None:
    whole = _whole(node)
    return whole.expression.this.sql(dialect="spark") if isinstance(whole, exp.Filter) else None


def _arguments(node: exp.Expr) -> list[str]:
    found = node.expressions if isinstance(node, exp.Anonymous) else [node.this, node.args.get("expression")]
    return [each.sql(dialect="spark") for each in found if isinstance(each, exp.Expr)]


def _orders_all(node: exp.GroupConcat) -> bool:
    """Whether texts that it joins are alike where its order does not tell them apart."""
    ordered = node.this
    if not isinstance(ordered, exp.Order):
        return False
    return any(term.this == ordered.this for term in ordered.expressions)
