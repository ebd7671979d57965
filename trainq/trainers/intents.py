"""Train a text classifier: which of a set of intents does an utterance express?

The training set is JSON, `{"language": "en", "intents": [{"name": "…", "utterances": ["…", …]}, …]}`; without
one (by hand: `python -m trainq.trainers.intents`) it is intents.json beside this file.
Parameters: language (has to be that of the training set), alpha (regularisation), epochs.
"""

from __future__ import annotations

import json
import os
import sys

import joblib
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from trainq import job

BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "intents.json")


def read(path: str, language: str | None) -> tuple[list[str], list[str]]:
    """The utterances and their intents; ValueError says what is wrong with the file."""
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if not isinstance(found, dict) or not isinstance(found.get("intents"), list):
        raise ValueError(  # noqa: TRY004 - one kind of error for one bad file
            'expected {"language": …, "intents": [{"name": …, "utterances": […]}]}'
        )
    if language is not None and found.get("language") != language:
        raise ValueError(f"its language is {found.get('language')!r}, the job's is {language!r}")
    utterances, names = [], []
    for number, intent in enumerate(found["intents"], 1):
        name, texts = (intent.get("name"), intent.get("utterances")) if isinstance(intent, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(texts, list) or len(texts) < 4:
            raise ValueError(f"intent {number}: expected a name and at least four utterances")
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(f"intent {number} ({name}): an utterance is not a text, or empty")
        utterances += texts
        names += [name] * len(texts)
    if len(set(names)) < 2 or len(set(names)) != len(found["intents"]):
        raise ValueError("expected two or more intents, each name once")
    return utterances, names


def main() -> None:
    """Read, train, save."""
    language = job.params.get("language")
    alpha = job.params.get("alpha", 0.0001)
    epochs = job.params.get("epochs", 250)
    path = job.data() or BUNDLED
    try:
        utterances, names = read(path, language)
    except (OSError, ValueError, RecursionError) as error:
        sys.exit(f"intents: bad training set {path!r}: {error}")

    texts, texts_test, y, y_test = train_test_split(
        utterances, names, test_size=0.25, stratify=names, random_state=job.seed
    )
    # Parts of words instead of words: inflected forms and typing errors have them in common.
    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    x, x_test = vectorizer.fit_transform(texts), vectorizer.transform(texts_test)
    model = SGDClassifier(loss="log_loss", alpha=alpha, learning_rate="constant", eta0=0.05, random_state=job.seed)
    known = sorted(set(y))
    scores = {}
    for epoch in range(1, epochs + 1):
        if job.should_stop():
            sys.exit(f"intents: stopped after {epoch - 1} of {epochs} epochs")
        model.partial_fit(x, y, classes=known)
        scores = {
            "accuracy": float(model.score(x_test, y_test)),
            "loss": float(log_loss(y_test, model.predict_proba(x_test), labels=model.classes_)),
        }
        job.metric(scores, step=epoch, group="test")
        job.progress(step=epoch, total=epochs)

    joblib.dump(make_pipeline(vectorizer, model), os.path.join(job.model_dir, "model.joblib"))
    with open(os.path.join(job.model_dir, "metrics.json"), "w", encoding="utf-8") as file:
        json.dump(scores, file)
    print(f"intents: {len(known)} intents, accuracy {scores['accuracy']:.3f}, loss {scores['loss']:.3f}")


if __name__ == "__main__":
    main()
