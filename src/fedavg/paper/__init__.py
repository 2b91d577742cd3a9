"""The paper's tables and figures, each from one command, beside the paper's numbers.

cells.py    the 97 cells of Tables 1 to 4 as data        search.py   the learning-rate search, pure logic
measure.py  what a cell still needs, and its result      cost.py     about how long a cell will take
shipped.py  whose records are read                       tables.py, figures.py, figure1.py   what readers see

Runs side by side, and the records of what they measured, are `fedavg.campaign`.
"""
