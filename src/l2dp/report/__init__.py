"""Tables, figures and pages from results in the `result.json` format, from homes and from audits.

Presentation only: nothing here trains or reads raw data, and no accuracy is shown without its guarantee and
its status. Names and notes may come from strangers' files: they are shown as text, never interpreted.
"""

from __future__ import annotations

from l2dp.report.lines import Result, Row, print_table, table_rows
from l2dp.report.paper import curve_png
from l2dp.report.writing import html_page, write_report

__all__ = ["Result", "Row", "curve_png", "html_page", "print_table", "table_rows", "write_report"]
