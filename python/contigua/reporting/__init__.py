"""Reports on runs: one page that needs no network, and its plots and tables as files.

``cases`` says what differs between runs, ``sentences`` what matters, ``plots`` and ``tables`` show
it, ``document`` makes the page of all that, ``export`` the files, and ``writing`` is what others
call. Plots are Vega-Lite: its
specifications are data that a test can read, vl-convert draws them without a browser, and its
runtime (BSD) puts 0.9 MB inside each page, where Plotly's whole bundle is 4.6 MB.
"""
