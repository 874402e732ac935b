"""One module a question; every figure is printed beside a floor measured in the same run."""
