"""What `make docs` builds the site of: the pages under the paths that they have in the repository.

mkdocs knows one folder of pages, and ours link to the chart, to the changelog and to code as well. So every page is taken
from the root of the repository, with those that they link to outside of docs/, and theirs. A file that is no page becomes
one that shows it, and links to it are turned there: a browser would offer it for download.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

START = "README.md"
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\[[^\]]*\]\()([^()\s#]+)((?:#[^()\s]*)?\))")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".conf": "ini", ".service": "ini"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the pages of docs/ by those of the repository; what the theme brings stays."""
    root, pages = _root(config), Path(config.docs_dir)
    of_docs = [file for file in files if file.src_dir == config.docs_dir]
    kept = [file for file in files if file.src_dir != config.docs_dir]
    paths = [Path(pages.name, file.src_uri) for file in of_docs]
    kept += [_take_as_it_is(root, path, config) for path in paths]
    kept += [_take(root, path, config) for path in sorted(find_outside(root, [Path(START), *paths]))]
    return Files(kept)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files that are shown on a page of their own to that page."""
    folder = (_root(config) / page.file.src_uri).parent

    def turn(link: re.Match[str]) -> str:
        target = _resolve(_root(config), folder, link[2])
        is_shown = target is not None and files.get_file_from_path(f"{target.as_posix()}.md") is not None
        return f"{link[1]}{link[2]}{'.md' if is_shown else ''}{link[3]}"

    return _LINK.sub(turn, markdown)


def find_outside(root: Path, paths: list[Path]) -> set[Path]:
    """Return the first path and what pages link to outside of docs/, also by way of others, relative to the root."""
    outside = {paths[0]}
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path.suffix != ".md":
            continue
        for target in _list_targets(root, path):
            if target.parts[0] != "docs" and target not in outside:
                outside.add(target)
                waiting.append(target)
    return outside


def _list_targets(root: Path, page: Path) -> Iterator[Path]:
    for _, link, _ in _LINK.findall(_FENCE.sub("", (root / page).read_text())):
        target = _resolve(root, (root / page).parent, link)
        if target is not None:
            yield target


def _resolve(root: Path, folder: Path, link: str) -> Path | None:
    """Return the file of the repository that a link leads to; None for any other link."""
    if re.match(r"[a-z]+:", link):
        return None
    path = (folder / unquote(link)).resolve()
    return path.relative_to(root) if path.is_file() and path.is_relative_to(root) else None


def _take_as_it_is(root: Path, path: Path, config: MkDocsConfig) -> File:
    return File(path.as_posix(), str(root), config.site_dir, config.use_directory_urls)


def _take(root: Path, path: Path, config: MkDocsConfig) -> File:
    if path.suffix == ".md":
        return _take_as_it_is(root, path, config)
    language = _LANGUAGES.get(path.suffix, "dockerfile" if path.name == "Dockerfile" else "text")
    content = f"# {path.as_posix()}\n\n````{language}\n{(root / path).read_text().rstrip()}\n````\n"
    name = f"{path.as_posix()}.md"
    return File.generated(config, name, content=content, inclusion=InclusionLevel.NOT_IN_NAV)


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent.resolve()
