"""A Flower App: which kinds of clients are there?"""
