"""A denoising autoencoder, 784-500-250-500-784: layers learn one after another, then together.

HORN_DATA=folder python examples/denoise.py, where folder/mnist has the four IDX files. It writes
denoise.png (with Pillow): digits, what is left of them, and what the network makes of that.

Source: Vincent et al., "Stacked Denoising Autoencoders", JMLR 2010; decoders have the weights of
their encoders, as there.
"""

import numpy as np

import horn

KEEP = 0.7  # of the pixels; the others are silent in training


def network(is_deep, seed):
    net = horn.Network(seed=seed)
    net.input((28, 28, 1), keep=KEEP)
    outer = net.layer(500, activation="sigmoid", name="outer")
    if is_deep:
        inner = net.layer(250, activation="sigmoid", name="inner")
        net.layer(connect=horn.Tied(inner), activation="sigmoid", name="unfolded")
    tied = horn.Tied(outer)
    net.output(connect=tied, activation="sigmoid", loss="binary_cross_entropy", name="decoder")
    return net


def job(epochs=8, is_deep=True, seed=1, rate=0.002, **more):
    data = horn.data.mnist().with_fields(y=None)
    more |= {"target": "input", "batch_size": 100, "epochs": epochs}
    rate = horn.Cosine(rate, iterations=epochs * len(data) // 100)
    return horn.Job(network(is_deep, seed), data, optimizer=horn.Adam(rate), **more)


def pretrained(epochs=(2, 2, 4), seed=1, rate=0.002, **settings):
    """The outer layers alone; the inner ones between them as they are; all of them together."""
    same = {"seed": seed, "rate": rate}
    alone = horn.train(job(epochs[0], False, **same), **settings).model
    same |= {"initial": alone, "frozen": ["outer", "decoder"]}
    inside = horn.train(job(epochs[1], **same), **settings).model
    return horn.train(job(epochs[2], **same | {"initial": inside, "frozen": ()}), **settings).model


def noisy(x):
    return x * (np.random.default_rng(0).random(x.shape) < KEEP)


if __name__ == "__main__":
    from PIL import Image

    model = pretrained(progress=True)
    digits = horn.data.mnist("test").x[:12] / 255
    left = noisy(digits)
    made = model.predict(left / KEEP)  # at inference the network scales what it hears by KEEP
    rows = [np.hstack(each.reshape(-1, 28, 28)) for each in (digits, left, made)]
    Image.fromarray((255 * np.vstack(rows)).astype(np.uint8)).save("denoise.png")
