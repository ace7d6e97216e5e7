"""Pages and templates -> Markdown. Every value is escaped unless the template says that it is Markup."""

import posixpath
from collections.abc import Iterable
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from tunemark.site.escape import escape, file_name, front_matter, script_json, web_link
from tunemark.site.page import Page

ENDING = ".html"


def markdown(page: Page) -> str:
    """Return the Markdown of a page, front matter included."""
    text = _environment().get_template(page.template).render(page.context, page=page)
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(_without_repeated_blanks(lines)).strip() + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tunemark.site", "templates"),
        autoescape=True,
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(front_matter=front_matter, script_json=script_json, here=_here, trusted=_trusted)
    return environment


@pass_context
def _here(context: Context, target: str) -> str:
    """Return the address of a page of the site, relative to the page that is being written; web addresses stay."""
    if web_link(target):
        return target
    page: Page = context["page"]
    path, _, anchor = target.partition("#")
    for part in path.split("/"):
        file_name(part)
    ending = "" if posixpath.splitext(path)[1] in {".js", ".csv"} else ENDING
    relative = posixpath.relpath(path + ending, posixpath.dirname(page.path) or ".")
    return f"{relative}#{anchor}" if anchor else relative


def _trusted(text: str) -> Markup:
    """Return text that this room made itself, such as a chart's SVG."""
    return Markup(text)  # noqa: S704 - by its name


def _without_repeated_blanks(lines: Iterable[str]) -> Iterable[str]:
    blank = False
    for line in lines:
        if line or not blank:
            yield line
        blank = not line
