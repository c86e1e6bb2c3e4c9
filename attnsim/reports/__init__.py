"""From a study to a document that answers its question, with everything needed to judge and to repeat the answer."""
