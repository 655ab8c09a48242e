"""Programs run natively and simulated, with 4 KB and 2 MB pages: predicted against measured."""
