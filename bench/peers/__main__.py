"""`python -m bench.peers`."""

from bench.peers.suite import main

if __name__ == "__main__":
    main()
