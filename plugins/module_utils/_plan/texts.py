# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the texts and small maps that several kinds of documents share. Private to socle.inference."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._plan import schema

NAME = r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?"
_CLASS_NAME = r"[a-z0-9]([a-z0-9_]*[a-z0-9])?"
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._:/@-]*"

name_text = schema.text(NAME, "a name of lower-case letters, digits, dots and dashes")
class_text = schema.text(_CLASS_NAME, "a name of lower-case letters, digits and underscores")
image_text = schema.text(_IMAGE, "an image reference of letters, digits and . _ : / @ -, without spaces")
served_text = schema.text(
    r"[A-Za-z0-9./_][A-Za-z0-9._:/+@-]*",
    "a name of letters, digits and . _ : / + @ -, without spaces, that begins with none of : + @ -",
)
version_text = schema.text(r"\d{1,9}\.\d{1,9}\.\d{1,9}[A-Za-z0-9.+-]{0,60}", "a version such as '0.32.0'")
slo_map = schema.map_of(schema.number(), r"[a-z][a-z0-9_]*", "lower-case words joined by underscores")
evidence_map = schema.map_of(schema.record({"value": schema.anything(), "source": schema.text()}, ["source"]))
