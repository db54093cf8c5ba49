"""RULER's 13 tasks, made for any tokenizer and any length.

    templates ─┐
    words ─────┤
    essays ────┼─► needles · variables · frequency · questions ─► Draft ─► sample
    (corpora) ─┘                                                    ▲
                                                             meter (tokenizer)

`samples.Generator` makes the sample of one index and keeps it on disk; `dataset.load` shows lm-eval
a set of them, each made when it is first looked at.
"""
