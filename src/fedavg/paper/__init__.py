"""The paper's tables and figures, each from one command, beside the paper's numbers.

cells.py    the 97 cells of Tables 1 to 4 as data        search.py   the learning-rate search, pure logic
records.py  what was measured, as compact JSON           measure.py  what a cell still needs, and what it came to
execute.py  runs plans side by side, one per core        one.py      one run, in a process of its own
cost.py     about how long a cell will take              tables.py, figures.py, figure1.py   what readers see
"""
