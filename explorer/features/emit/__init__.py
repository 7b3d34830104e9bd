"""Emit mapped matrix products as C code, and prove its numbers and the bytes that it moves."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={"emit": "emit_command.COMMAND"},
    methods={"emit": "emitter.emit", "epilogues": "emitter.epilogues", "verify_code": "emitter.verify_code"},
    words={"verify_code": "emit_words.code_proof", "code_evidence": "emit_words.code_evidence"},
    blocks={"CodeProof": "emit_words.code_proof"},
)
