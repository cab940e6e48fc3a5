"""The processes that `bellringer dev` and `bellringer cluster up` run on one machine."""
