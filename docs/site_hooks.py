"""Make the documentation site of what the repository holds.

MkDocs calls these functions while it builds. The doctor's table becomes one page for each pitfall,
links that lead out of ``docs`` become links to the repository, and a site that is not whole is no
site: each pitfall needs its page, and nothing may be loaded from another host.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gpuscope.doctor import explain, table

REPOSITORY = "https://github.com/gpuscope/gpuscope/blob/main"
INLINE_CODE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"(?<=[\s\[>])--?\w[\w-]*")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\ssrc=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*rel=["']?canonical)[^>]*?\shref=["']?(?:https?:)?//"""
    r"""|@import\s+["']?https?:|url\(["']?https?:"""
)


def on_files(files: Files, config: Any) -> Files:
    """Add one page for each pitfall, and take the fonts of other hosts out of the pictures."""
    rows = table.load().values()
    for path, text in explain.site_pages(rows).items():
        if (old := files.get_file_from_path(path)) is not None:
            files.remove(old)
        files.append(File.generated(config, path, content=text))
    for picture in [one for one in files if one.src_uri.endswith(".svg")]:
        drawn = re.sub(r"@font-face\s*{[^}]*}", "", picture.content_string)
        files.remove(picture)
        files.append(File.generated(config, picture.src_uri, content=drawn))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to the pages that the site has, or else to the repository."""
    up = "../" * page.file.src_uri.count("/")
    text = re.sub(r"\]\(pitfalls\.md#([\w-]+)\)", r"](pitfalls/\1.md)", markdown)
    return re.sub(rf"\]\({up}\.\./([^)\s]+)\)", rf"]({REPOSITORY}/\1)", text)


def on_page_content(html: str, **_: Any) -> str:
    """Keep each option of an inline command in one piece, for which the style sheet has a rule."""
    whole = r'<span class="option">\g<0></span>'
    return INLINE_CODE.sub(lambda found: OPTION.sub(whole, found[0]), html)


def on_post_build(config: Any) -> None:
    """Refuse a site that lacks the page of a pitfall or loads something from another host."""
    site = Path(config.site_dir)
    lacking = [name for name in table.load() if not (site / "pitfalls" / f"{name}.html").is_file()]
    if lacking:
        raise PluginError(f"These pitfalls have no page: {', '.join(lacking)}.")
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css", ".svg") and (found := LOADED.search(path.read_text())):
            raise PluginError(f"{path} loads something from another host: {found[0]}")
