"""A small text classification that needs no download: which topic is a sentence about?"""
