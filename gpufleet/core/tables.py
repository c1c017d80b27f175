"""Lists: columns, filters, search, order, paging and CSV of one kind of row, stated once and served as a page, a fragment, a file or an API answer.

    NODES = Table(
        name="nodes", noun="node", default_sort="name",
        columns=(Column("name", "Node", sort="name", cell='<a href="…">{{ row.name }}</a>'), …),
    )

    def node_list(request):
        return NODES.respond(request, nodes_visible(access_of(request)), "scheduler/node_list.html")

All of a list's state is in its address. What the address says wrongly is named above the list and otherwise ignored: a list always answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.template import Context, Template
from django.template.engine import Engine
from django.utils.cache import patch_vary_headers
from django.utils.html import format_html
from django.utils.safestring import SafeString

from gpufleet.core import csvfile
from gpufleet.core.filters import Bound, Choice, Filter, Flag, Moment, Text, Words, search_condition
from gpufleet.core.keyset import BadToken, Key, Slice, keyset_page
from gpufleet.core.tokens import tokens_read

__all__ = ["Choice", "Column", "Flag", "Moment", "Page", "Table", "Text", "Words"]

SIZES = (25, 50, 100, 250, 500)
DEFAULT_SIZE = 100
COUNT_LIMIT = 10_000
# No index knows which rows hold a word: as many rows are read as it takes to find so many.
SEARCH_COUNT_LIMIT = 1_000
MOST_NAMED = 100
# The whole list, where its address without parameters opens the view that a person made the default.
EVERYTHING = "?q="
# Choices of columns whose rows stay compiled, of each list.
MOST_BODIES = 50

Presenter = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `value` is a dotted path into the row or a function of it, and what the CSV holds; `cell` is a template of what the page shows.

    `sort` names the paths or expressions that the column orders by. A cell that ends in `.html` names a template file; all see `row`.
    An `optional` column is shown only to those who choose it. What is `measured` grows old without anybody's change.
    """

    key: str
    label: str
    value: str | Callable[[Any], Any] = ""
    cell: str = ""
    sort: str | tuple[str | Combinable, ...] = ()
    numeric: bool = False
    most_first: bool = False
    hint: str = ""
    on_page: bool = True
    in_file: bool = True
    optional: bool = False
    measured: bool = False

    @property
    def offered(self) -> bool:
        """Whether a page can show it."""
        return self.on_page or self.optional

    def read(self, row: Any) -> Any:
        if callable(self.value):
            return self.value(row)
        for part in (self.value or self.key).split("."):
            row = row[part] if isinstance(row, Mapping) else getattr(row, part)
            row = row() if callable(row) else row  # get_health_display and the like, as in templates
            if row is None:
                return None
        return row

    @property
    def order(self) -> tuple[str | Combinable, ...]:
        return (self.sort,) if isinstance(self.sort, str) else self.sort

    @property
    def source(self) -> str:
        """The cell as a piece of template."""
        if self.cell.endswith(".html"):
            return f'{{% include "{self.cell}" %}}'
        return self.cell or f"{{{{ row.{self.value or self.key}|default_if_none:'–' }}}}"


@dataclass(frozen=True)
class Table:
    """A list, stated.

    `search` are the fields that the search box looks through. `empty` is what an empty installation shows instead of rows; its button is for
    those for whom the page says `can_add`, and `empty_next` an address and its name for everybody. `libraries` are the template libraries that
    cells use. `presented` turns a page's rows into what cells and the file read, in a fixed number of queries; where that depends on the reader
    it is given to `page` or `respond` instead. `row_key` is the path of what tells a row from all others, for lists that a script keeps up to
    date, and `row_field` the model's field of it: such lists answer `?rows=`. `suggest_url` names the address that says what a filter could be;
    it answers `?field=&typed=`. Filters that `rarely` names wait behind “More filters”. `example` is what the empty filter line shows. On a phone a
    row is a few lines, each cell behind the label of its column; with `styled` a style sheet of the list says there what a cell is, by its class
    `c-key`. `choose` is the id of a form that takes rows which were chosen: where the page `chooses`, each has a box in front whose name is `row`
    and whose value is its key. `shown_by` names a template that draws the rows where columns do not do. A page that shows
    something measured is asked for again every `again_ms`.
    """

    name: str
    noun: str
    columns: tuple[Column, ...]
    default_sort: str
    filters: tuple[Filter, ...] = ()
    search: tuple[str, ...] = ()
    counted: bool = True
    empty: str = ""
    empty_href: str = ""
    empty_action: str = ""
    empty_next: tuple[str, str] = ("", "")
    plural: str = ""
    libraries: tuple[str, ...] = ("shell",)
    presented: Presenter | None = None
    row_key: str = ""
    row_field: str = ""
    styled: bool = False
    choose: str = ""
    suggest_url: str = ""
    rarely: tuple[str, ...] = ()
    example: str = ""
    shown_by: str = ""
    again_ms: int = 0

    def __post_init__(self) -> None:
        for column in self.columns:
            if callable(column.value) and column.offered and not column.cell:
                raise ValueError(f"{self.name}: {column.key} needs a cell, as a page can't show a function.")

    @cached_property
    def shown(self) -> tuple[Column, ...]:
        """The columns of those who have chosen none."""
        return tuple(column for column in self.columns if column.on_page and not column.optional)

    def without(self, *keys: str) -> "Table":
        """The same list for readers whom some columns are not for, in files as well."""
        return replace(self, columns=tuple(column for column in self.columns if column.key not in keys))

    @property
    def plural_noun(self) -> str:
        return self.plural or f"{self.noun}s"

    @property
    def offered(self) -> list[Column]:
        return [column for column in self.columns if column.offered]

    def columns_spelt(self, keys: Sequence[str]) -> str:
        """Chosen columns as an address names them, in the list's order and without the first; columns that there are not are left out."""
        return ".".join(column.key for column in self.offered[1:] if column.key in keys) or FIRST_ALONE

    def chosen(self, keys: Sequence[str]) -> tuple[Column, ...]:
        """The columns of a person who chose these. The first names the row and always stays."""
        if not keys:
            return self.shown
        return tuple(column for number, column in enumerate(self.offered) if number == 0 or column.key in keys)

    def body(self, columns: tuple[Column, ...]) -> Template:
        """All rows as one template, compiled once for each choice of columns: a cell costs no template of its own. The first cell names its row."""
        known = self._bodies.get(columns)
        if known is None:
            if len(self._bodies) >= MOST_BODIES:
                self._bodies.clear()
            known = self._bodies[columns] = self._compiled(columns)
        return known

    @cached_property
    def _bodies(self) -> dict[tuple[Column, ...], Template]:
        return {}

    def _compiled(self, columns: tuple[Column, ...]) -> Template:
        first, *rest = columns
        cells = f'<th scope="row"{self._marks(first, "rowheader")}>{first.source}</th>'
        cells += "".join(f"<td{self._marks(column, 'cell')}>{column.source}</td>" for column in rest)
        if self.choose:
            cells = f"{{% if chooses %}}{self._box}{{% endif %}}{cells}"
        loads = "".join(f"{{% load {library} %}}" for library in self.libraries)
        key = f' data-key="{{{{ row.{self.row_key} }}}}"' if self.row_key else ""
        return Engine.get_default().from_string(f'{loads}{{% for row in rows %}}<tr{key} role="row">{cells}</tr>{{% endfor %}}')

    @property
    def _box(self) -> str:
        box = f'<input type="checkbox" name="row" value="{{{{ row.{self.row_key} }}}}" form="{self.choose}"'
        return f'<td class="c-choose" role="cell"><label>{box} aria-label="Choose {{{{ row.{self.row_key} }}}}"></label></td>'

    def _marks(self, column: Column, role: str) -> str:
        """Class and role of a cell. What is laid out otherwise than as a table says itself that it is one: browsers may forget it."""
        said = "" if self.styled or role == "rowheader" else f' data-said="{column.label}"'
        return f' class="{"num " if column.numeric else ""}c-{column.key}" role="{role}"{said}'

    def page(
        self,
        parameters: QueryDict,
        queryset: QuerySet[Any, Any],
        *,
        sizes: Sequence[int] = SIZES,
        size: int = DEFAULT_SIZE,
        presented: Presenter | None = None,
    ) -> "Page":
        """The page that the address asks for. One query, one more to count where more rows match, and those of filters and presenter."""
        page = self._asked(parameters, queryset, sizes=sizes, size=size, presented=presented)
        page.slice = self._slice(page)
        return page

    def _asked(self, parameters: QueryDict, queryset: QuerySet[Any, Any], *, sizes: Sequence[int], size: int, presented: Presenter | None) -> "Page":
        """What the address asks for, before any row is read."""
        faults: dict[str, list[str]] = {}
        parameters = self._told(parameters, faults)
        bound = [item.bind(parameters.getlist(item.key)) for item in self.filters]
        faults |= {item.key: [item.problem] for item in bound if item.problem}
        query = parameters.get("q", "").strip() if self.search else ""
        if "\0" in query:
            query = ""
            faults["q"] = ["The search holds a character that no text has."]
        sort, order = self._order(parameters.get("sort", ""), faults)
        rows_of = queryset
        for item in bound:
            if item.condition is not None:
                rows_of = rows_of.filter(item.condition)
        if query:
            rows_of = rows_of.filter(search_condition(query, self.search))
        page = Page(self, parameters, bound, query, sort, order, _size(parameters, sizes, size, faults), faults, rows_of, sizes)
        page.presented = presented or self.presented
        return page

    def _told(self, parameters: QueryDict, faults: dict[str, list[str]]) -> QueryDict:
        """The parameters with each `key:value` of the search moved to its filter."""
        written = parameters.get("q", "")
        if ":" not in written:
            return parameters
        told = tokens_read(written, self.filters)
        if told.empty:
            faults["q"] = [f"{name}: needs a value, such as {name}:{example}." for name, example in told.empty]
        parameters = parameters.copy()
        parameters["q"] = told.words
        for key, values in told.values.items():
            parameters.setlist(key, [*parameters.getlist(key), *values] if self._takes_several(key) else values[-1:])
        return parameters

    def said(self, parameters: QueryDict, key: str) -> str:
        """What an address says of a filter, by its parameter or in the filter line."""
        return self._told(parameters, {}).get(key, "")

    def _takes_several(self, key: str) -> bool:
        return any(item.key == key and isinstance(item, Choice | Words) for item in self.filters)

    def page_asked(self, parameters: QueryDict, queryset: QuerySet[Any, Any], *, size: int = DEFAULT_SIZE) -> "Page":
        """What an address asks for and what of it can't be read, without reading any row."""
        return self._asked(parameters, queryset, sizes=SIZES, size=size, presented=None)

    def matching(self, parameters: QueryDict, queryset: QuerySet[Any, Any], most: int) -> tuple[list[Any], bool, list[str]]:
        """The first rows that match, in the list's order and whatever page of it was asked for; whether there are more; and what can't be read."""
        page = self.page_asked(parameters, queryset)
        found = keyset_page(page.queryset, order=page.order, size=most)
        return found.rows, bool(found.after), page.problems

    def respond(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any, Any],
        template: str = "list.html",
        context: Mapping[str, Any] | None = None,
        *,
        presented: Presenter | None = None,
        chooses: bool = False,
    ) -> HttpResponseBase:
        """The list as a page, as its own region where htmx asks for that, as a file with `?format=csv`, or only the rows that `?rows=` names.

        `chooses` puts a box in front of each row, where the list has a form that takes them.
        A value of the context that can be called is only called where the whole page is wanted; `version` is the revision that the page shows.
        """
        if self.row_field and "rows" in request.GET:
            return self._named(request, queryset, presented, (context or {}).get("version", 0), chooses)
        page = self.page(request.GET, queryset, presented=presented)
        page.chooses = chooses
        page.columns = self.chosen(columns_asked(request, self.name))
        if request.GET.get("format") == "csv":
            return page.csv(request)
        partial = getattr(request, "htmx", False) and not request.htmx.history_restore_request and request.htmx.target == page.region  # type: ignore[attr-defined]
        answer: HttpResponse = render(request, "_table.html" if partial else template, {**(context or {}), "page": page})
        if partial:
            # A form sends its empty fields too; the address that people copy and share does without them.
            answer["HX-Push-Url"] = page.own_href if page.own_href != "?" else EVERYTHING
        patch_vary_headers(answer, ["HX-Request", "HX-Target"])
        return answer

    def _named(self, request: HttpRequest, queryset: QuerySet[Any, Any], presented: Presenter | None, version: int, chooses: bool) -> HttpResponse:
        """For a page that was told of changes: the keys of all rows that it should show now, in order, and those rows of it that are named.

        A new row comes and one that left goes at the cost of a few rows, however long the page is.
        """
        page = self._asked(request.GET, queryset, sizes=SIZES, size=DEFAULT_SIZE, presented=presented)
        page.chooses = chooses
        page.columns = self.chosen(columns_asked(request, self.name))
        every = page.queryset
        page.queryset = every.values(self.row_field)
        page.slice = self._slice(page)
        keys = [str(row[self.row_field]) for row in page.slice.rows]
        named = set(request.GET["rows"].split(",")[:MOST_NAMED]).intersection(keys)
        found = {str(getattr(row, self.row_field)): row for row in every.filter(**{f"{self.row_field}__in": named})} if named else {}
        page.slice = replace(page.slice, rows=[found[key] for key in keys if key in found])
        answer = format_html('<table data-version="{}" data-order="{}"><tbody>{}</tbody></table>', version, ",".join(keys), page.body)
        return HttpResponse(answer)

    def _order(self, asked: str, faults: dict[str, list[str]]) -> tuple[str, list[Key]]:
        sortable = {column.key: column for column in self.columns if column.sort}
        parts = [part for part in asked.split(",") if part]
        unknown = [part for part in parts if part.removeprefix("-") not in sortable]
        if unknown:
            faults["sort"] = [f"The list can't be sorted by “{unknown[0][:40]}”; it can be by {', '.join(sortable)}."]
        kept = [part for part in parts if part not in unknown]
        order = []
        for part in kept or self.default_sort.split(","):
            column = sortable[part.removeprefix("-")]
            order += [Key(path, part.startswith("-")) for path in column.order]
        return ",".join(kept), order

    def _slice(self, page: "Page") -> Slice:
        after, before = page.parameters.get("after", ""), page.parameters.get("before", "")
        if after and before:
            page.faults["before"] = ["A page lies behind one row or before one, not both; this is the first page."]
            after = before = ""
        try:
            found = keyset_page(page.queryset, order=page.order, size=page.size, after=after, before=before)
        except BadToken as fault:
            page.faults["after" if after else "before"] = [f"This is the first page: {fault}."]
            after = before = ""
            found = keyset_page(page.queryset, order=page.order, size=page.size)
        if not found.rows and (after or before):
            # The rows of that page are gone; the beginning is a better answer than nothing.
            found = keyset_page(page.queryset, order=page.order, size=page.size)
        return found


@dataclass(frozen=True, slots=True)
class Head:
    """A column's heading: what it is sorted by now, and where a click leads."""

    column: Column
    href: str
    direction: str

    @property
    def aria_sort(self) -> str:
        return self.direction or ("none" if self.href else "")


@dataclass(frozen=True, slots=True)
class Chip:
    """A value that the list is filtered by, and the address without it."""

    key: str
    label: str
    word: str
    href: str


@dataclass
class Page:
    """One page of a list, ready for its template or an API answer."""

    table: Table
    parameters: QueryDict
    filters: list[Bound]
    query: str
    sort: str
    order: list[Key]
    size: int
    faults: dict[str, list[str]]  # by the parameters that can't be read
    queryset: QuerySet[Any, Any]
    sizes: Sequence[int]
    presented: Presenter | None = None
    chooses: bool = False
    columns: tuple[Column, ...] = ()
    slice: Slice = field(init=False)

    def __post_init__(self) -> None:
        self.columns = self.columns or self.table.shown

    @property
    def problems(self) -> list[str]:
        return [text for texts in self.faults.values() for text in texts]

    @property
    def region(self) -> str:
        return f"table-{self.table.name}"

    @cached_property
    def rows(self) -> Sequence[Any]:
        return self.presented(self.slice.rows) if self.presented else self.slice.rows

    @cached_property
    def body(self) -> SafeString:
        return self.table.body(self.columns).render(Context({"rows": self.rows, "chooses": self.chooses}))

    @property
    def again_ms(self) -> int:
        measured = [column for column in self.columns if column.measured] if self.table.again_ms else []
        return self.table.again_ms if any(column.read(row) is not None for column in measured for row in self.rows) else 0

    @cached_property
    def total(self) -> int | None:
        """How many rows match, or None where counting stops at the limit. Costs a query only where more than this page matches."""
        if not self.table.counted:
            return None
        if not self.slice.after:
            return self.slice.last
        count = self.queryset.order_by()[: self.count_limit + 1].count()
        return count if count <= self.count_limit else None

    @property
    def count_limit(self) -> int:
        return SEARCH_COUNT_LIMIT if self.query else COUNT_LIMIT

    @property
    def extent(self) -> str:
        """`1–100 of 4,000 GPUs`, as far as it is known."""
        if not self.slice.rows:
            return ""
        span = f"{self.slice.first:,}–{self.slice.last:,}" if len(self.slice.rows) > 1 else f"{self.slice.first:,}"
        plural = self.table.plural_noun
        if self.total is None:
            return f"{span} of more than {self.count_limit:,} {plural}" if self.table.counted else f"{plural.capitalize()} {span}"
        return f"{span} of {self.total:,} {self.table.noun if self.total == 1 else plural}"

    @property
    def common_filters(self) -> list[Bound]:
        return [item for item in self.filters if item.key not in self.table.rarely]

    @property
    def rare_filters(self) -> list[Bound]:
        return [item for item in self.filters if item.key in self.table.rarely]

    @property
    def chips(self) -> list[Chip]:
        return [Chip(item.key, item.label, word, self._without(item.key, value)) for item in self.filters for value, word in item.values]

    def _without(self, key: str, value: str) -> str:
        parameters = self.parameters.copy()
        parameters.setlist(key, [other for other in parameters.getlist(key) if other != value])
        if len(self._bound(key).values) == 1:
            # Empty and not left out, where an address without parameters opens the view that a person made the default.
            parameters[key] = ""
        for name in ("after", "before", "format"):
            parameters.pop(name, None)
        return f"?{parameters.urlencode()}"

    def _bound(self, key: str) -> Bound:
        return next(item for item in self.filters if item.key == key)

    @property
    def example(self) -> str:
        """What the filter line shows while it is empty."""
        if self.table.example:
            return self.table.example
        written = [f"{item.key}:{option.value}" for item in self.filters for option in item.options[:1]]
        named = [f"{item.key}:" for item in self.filters if item.kind == "text"]
        return " ".join([*written[:2], *named[: 2 - len(written[:2])]])

    @property
    def column_choices(self) -> list[tuple[Column, bool]]:
        """The columns that can be chosen, and whether each is shown now; without the first, which always is."""
        return [(column, column in self.columns) for column in self.table.offered[1:]]

    @property
    def rare_is_open(self) -> bool:
        return any(item.active or item.problem for item in self.rare_filters)

    @property
    def is_filtered(self) -> bool:
        return bool(self.query) or any(item.active for item in self.filters)

    @property
    def is_asked(self) -> bool:
        """Whether the address says anything about which rows to show, rightly or wrongly."""
        return self.is_filtered or any(item.problem for item in self.filters)

    @cached_property
    def heads(self) -> list[Head]:
        return [Head(column, self._sort_href(column), self._direction(column)) for column in self.columns]

    def _direction(self, column: Column) -> str:
        for part in (self.sort or self.table.default_sort).split(","):
            if column.sort and part.removeprefix("-") == column.key:
                return "descending" if part.startswith("-") else "ascending"
        return ""

    def _sort_href(self, column: Column) -> str:
        """One click sorts, the next turns round, the third goes back to the list's own order."""
        if not column.sort:
            return ""
        first, second = (f"-{column.key}", column.key) if column.most_first else (column.key, f"-{column.key}")
        own = self.sort or self.table.default_sort
        following = second if own == first else ("" if own == second else first)
        if following == "" and self.table.default_sort == second:
            following = first
        return self.href(sort=following)

    def href(self, **changes: str) -> str:
        """The address of this list with some parameters changed; the place in the list is given up."""
        parameters = self.parameters.copy()
        for key in ("after", "before", "format"):
            parameters.pop(key, None)
        for key, value in changes.items():
            parameters[key] = value
        for key in [key for key, values in parameters.lists() if not any(values)]:
            del parameters[key]
        return f"?{parameters.urlencode()}"

    @property
    def own_href(self) -> str:
        """This very page, without parameters that say nothing."""
        parameters = self.parameters.copy()
        for key in [key for key, values in parameters.lists() if not any(values)]:
            del parameters[key]
        return f"?{parameters.urlencode()}"

    @property
    def own_columns_href(self) -> str:
        """This very page, with the columns that the browser keeps."""
        parameters = QueryDict(self.own_href.removeprefix("?"), mutable=True)
        parameters.pop(COLUMNS, None)
        return f"?{parameters.urlencode()}" if parameters else EVERYTHING

    @property
    def next_href(self) -> str:
        return self.href(after=self.slice.after) if self.slice.after else ""

    @property
    def previous_href(self) -> str:
        return self.href(before=self.slice.before) if self.slice.before else ""

    @property
    def csv_href(self) -> str:
        return self.href(format="csv")

    @property
    def clear_href(self) -> str:
        cleared = self.href(q="", **{item.key: "" for item in self.filters})
        return cleared if cleared != "?" else EVERYTHING

    @property
    def carried(self) -> list[tuple[str, str]]:
        """Parameters that the filter form must keep: order, size, and what belongs to the page around the list."""
        asked = {"q", "after", "before", "format", "size", *(item.key for item in self.filters)}
        return [(key, value) for key, values in self.parameters.lists() if key not in asked for value in values if value]

    def csv(self, request: HttpRequest) -> StreamingHttpResponse:
        """All rows that match as a file, streamed."""
        columns = [column for column in self.table.columns if column.in_file]
        labels = [column.label for column in columns]
        return csvfile.answer(request, f"{self.table.name}.csv", labels, self.chunks, lambda row: [column.read(row) for column in columns])

    def chunks(self, place: str) -> tuple[Sequence[Any], str]:
        """The rows behind a place, for files: each chunk is a query of its own, so a slow download holds no transaction open."""
        found = keyset_page(self.queryset, order=self.order, size=csvfile.CHUNK, after=place)
        return (self.presented(found.rows) if self.presented else found.rows), found.after


COLUMNS, COLUMNS_COOKIE = "columns", "columns-"
# A list with its first column alone: a name that no column has.
FIRST_ALONE = "-"


def columns_kept(request: HttpRequest, table: str) -> list[str]:
    """Which columns of a list this browser was told to show; none: those that the list has by itself."""
    return [key for key in request.COOKIES.get(f"{COLUMNS_COOKIE}{table}", "").split(".") if key]


def columns_asked(request: HttpRequest, table: str) -> list[str]:
    """Those that the address names, as a saved view does; else those that the browser keeps."""
    return [key for key in request.GET.get(COLUMNS, "").split(".") if key] or columns_kept(request, table)


def _size(parameters: QueryDict, sizes: Sequence[int], default: int, faults: dict[str, list[str]]) -> int:
    asked = parameters.get("size", "")
    if not asked:
        return default
    if asked.isascii() and asked.isdigit() and len(asked) < 6 and int(asked) in sizes:
        return int(asked)
    allowed = f"{sizes.start} to {sizes.stop - 1}" if isinstance(sizes, range) else ", ".join(str(size) for size in sizes)
    faults["size"] = [f"A page can't have “{asked[:40]}” rows; it can have {allowed}."]
    return default
