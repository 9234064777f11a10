"""What a sweep has recorded, for the tests of its page."""


def job(number, score, **changes):
    evaluations = [] if score is None else [[10, score - 10], [20, score]]
    return {
        "number": number,
        "status": "finished",
        "seconds": 61.0,
        "error": None,
        "is_feasible": True,
        "folder": str(number),
        "report": f"{number}/report.html",
        "values": {"args.learning_rate": 10.0 ** (number - 4), "model": "ab"[number % 2]},
        "objective": {"eval_f1": score},
        "evaluations": evaluations,
        **changes,
    }


def summary(**changes):
    return {
        "name": "found",
        "goals": {"eval_f1": "max"},
        "parameters": ["args.learning_rate", "model"],
        "best": [2],
        "baselines": {},
        "importances": {"eval_f1": {"args.learning_rate": 0.75, "model": 0.25}},
        "jobs": [
            job(0, 60.0, values={"args.learning_rate": 1e-4, "model": "a"}),
            job(1, 40.0, status="pruned", values={"args.learning_rate": 1e-2, "model": "a"}),
            job(2, 81.5, values={"args.learning_rate": 1e-3, "model": "b"}),
            job(3, None, status="failed", error="InputError: no", report=None),
        ],
        **changes,
    }
