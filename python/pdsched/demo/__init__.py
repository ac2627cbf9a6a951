"""The demo: real prompts on a real model over one prefill and one decode worker, and the measured case for it.

`run.run_demo` is the whole of it. What is measured is in `experiment`, what is shown in `view`, what is drawn in
`picture`; texts and their licences are in `texts/`.
"""
