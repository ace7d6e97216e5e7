"""Rules of the audit, one module per family. `audit.rule.all_rules` imports every module of this folder."""
