"""The judgement of a set: what does someone lose who gets it instead of the records?"""
