"""Which size of :mod:`.convolution_scratch` a convolution takes, by precision, kind and direction.

Written by ``bench/predict/fit_convolutions.py`` from what an H200 took: not to be changed by hand.
Each text is a tree, ``number<threshold(tree where it is less|tree where not)``, its leaves names of sizes.
What has none goes by :mod:`.convolution_rules`."""

from __future__ import annotations

TREES: dict[tuple[str, str, str], str] = {
    ("cores", "stem", "forward"): ("intensity<13.04(none|bytes<6100000(none|intensity<17.44(x y|rule)))"),
    ("cores", "stem", "input"): ("size<3(rule|none)"),
    ("cores", "stem", "weight"): (
        "size<3(bytes<1260000(x y w|kernel<2(none|x y w +64x32))|y<900000(x y w +1|intensity<6.1(none|batch<14(x "
        "y w +3|rule))))"
    ),
    ("cores", "volume", "input"): (
        "size<3(rule|kernel<5(intensity<27(stride<2(none|stride<3(x y|none))|rule)|stride<2(rule|none)))"
    ),
    ("fp32", "dense", "weight"): (
        "intensity<32.6(products<700(none|work<792000000(none|bytes<235000000(x y w +64x32|rule)))|intensity<501("
        "stride<5(pixels out<21(x y w +128x64|bytes<1500000000(products back<15000(fewer<60(intensity<166(padding"
        "<2(intensity<63.91(rule|products back<4000(winograd|x y w))|none)|spectra of weight)|rule)|none)|winogra"
        "d))|x y w)|kernel<4(rule|x y w +128x128 flat)))"
    ),
    ("fp32", "stem", "input"): ("none"),
    ("fp32", "volume", "weight"): ("channels<60(rule|work<400000000(none|x y w))"),
    ("fp32", "pointwise", "weight"): ("fewer<230(none|rule)"),
    ("fp32", "last", "forward"): ("products<200(none|rule)"),
    ("fp32", "last", "input"): ("x y w"),
    ("fp32", "grouped", "forward"): ("none"),
}
