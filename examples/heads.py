"""One network, three tasks on the digits that come with horn: which digit, whether it is odd, and
the image again, from 16 numbers. Each output has a loss of its own; a loss between two layers asks
that what the decoder says is what the network saw.

    horn submit examples/heads.py
"""

import horn


def job() -> horn.Job:
    net = horn.Network(seed=1)
    pixels = net.input(64, name="pixels")
    net.layer(64, activation="relu")
    code = net.layer(16, activation="relu", name="code")
    again = net.layer(64, activation="sigmoid", name="again")
    net.output(10, activation="softmax", loss="cross_entropy", inputs=code, name="digit")
    net.output(1, activation="sigmoid", loss="binary_cross_entropy", inputs=code, weight=0.5,
               name="odd")  # fmt: skip
    net.loss(again, pixels, "squared_error", weight=0.1, name="image")
    train, test = (
        data.with_targets({"digit": data.y, "odd": data.y % 2})
        for data in (horn.data.digits(), horn.data.digits("test"))
    )
    optimizer = horn.SGD(0.1, momentum=0.9)
    return horn.Job(net, train, optimizer, epochs=20, test=test)


def report(run: horn.Run) -> None:
    test = horn.data.digits("test")
    found = run.model.predict(test, labels=True)
    for k in range(3):
        print(f"said {found['digit'][k]}, odd: {found['odd'][k]}; it is {test.y[k]}")


if __name__ == "__main__":
    run = horn.train(job())
    print("test " + "  ".join(f"{name} {value:.4f}" for name, value in run.test.items()))
    report(run)
