"""The programs that measure claims, one for each topic: ``python -m gpuscope.lab.claim_measures.TOPIC --claims ID,…``.

Each measures its claims one after the other in one process and prints a JSON object a line (see ``bench``). They may
import torch; what starts them and reads them (``claim_run``) does not.
"""
