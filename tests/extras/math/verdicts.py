"""Pairs of gold answer and content of the box, by the rule of docs/rewards.md that decides them."""

RIGHT = {
    "small numbers": [
        ("10^{-9}", "1e-9"), ("10^{-9}", "0.000000001"), ("2^{-30}", "9.3132257e-10"),
        ("e^{-20}", "2.0611536e-9"), ("e^{-20}", r"\frac{1}{e^{20}}"), ("1-10^{-9}", "0.999999999"),
        (r"\sqrt8 \cdot 10^{-20}", r"2\sqrt2 \cdot 10^{-20}"), (r"\frac{1}{3}", "0.333333"),
        (r"\frac{\pi}{10^7}", "3.1415927e-7"), ("x = 1.45e-5", "0.0000145"), ("1.414214", r"\sqrt2"),
    ],
    "units": [
        ("5", r"5\text{ apples}"), ("50", r"50\text{ miles per hour}"), ("12", r"12\text{ more apples}"),
        ("6", r"6\text{ cm squared}"), ("2\\sqrt{3}", r"2\sqrt{3}\text{ square feet}"), ("5", "5 dollars"),
        ("5", r"\approx 5 \text{ mph}"), ("1.85", r"1.85\ \text{USD}"), (r"90^\circ", "90"),
    ],
    "scales": [
        (r"5\text{ million}", "5000000"), (r"5\text{ million}", "5,000,000"), ("500", "5 hundred"),
        ("1000000", "1 million"), ("1500000", r"1.5\text{ million}"),
        ("3000000", r"\$3\text{ million dollars}"),
    ],
    "times": [
        (r"3\text{ p.m.}", "3 PM"), ("3", "3 p.m."), ("3:30 PM", "3:30"), ("10:30", "10:30"),
        ("1 : 2", "1:2"), (r"\frac{1}{3}", "1:3"), ("7:38", r"\frac{7}{38}"),
    ],
    "words": [
        (r"\text{east}", r"\text{East}"), (r"\text{Evelyn}", "evelyn"), (r"\text{abc}", "abc"),
        ("xy", r"x \cdot y"), ("2xy", "2yx"), (r"\text{A and C}", "C, A"), (r"\text{(B)}", "B"),
        ("infinity", r"\infty"),
    ],
    "chains": [
        ("5", "x=5"), ("5", "2+3=5"), ("5", "x=2+3=5"), ("7", "m+n=7"),
        (r"\frac{2}{3}", r"x = 0.667 = \frac{2}{3}"), ("0.56", r"0.56 = 56\%"),
        ("x = 5", "x = 2 + 3 = 5"), ("5", "f(2) = 5"), ("15450", "x = 15,450"),
    ],
    "lists": [
        ("1, 2", r"\{2, 1\}"), (r"\{1, 2\}", "2, 1"), ("(1,2)", "1, 2"), ("1, 2", "(1,2)"),
        ("1, 2", "x = 2, x = 1"), ("1, 2", "x_1 = 2, x_2 = 1"), ("(1, 2)", "x = 1, y = 2"),
        ("x = 1, y = 2", "y = 2, x = 1"), ("AB=9, CD=4", "9, 4"), (r"\{(1,2)\}", r"\{(1,2)\}"),
    ],
    "percentages": [("50", r"5000\%"), (r"28\%", "0.28"), (r"28\%", "28")],
    "closed forms": [
        (r"\frac{3}{4}", "3/4"), (r"3\frac12", "3 1/2"), (r"3\frac12", r"\frac72"),
        (r"\sqrt{12}", r"2\sqrt3"), ("1024", "2^{10}"), ("2^{10}", "1024"), (r"5\pi", r"\pi \cdot 5"),
        (r"1+\sqrt2", r"\sqrt2 + 1"), (r"\frac{1+\sqrt5}{2}", r"\frac12 + \frac{\sqrt5}{2}"),
        ("300000", r"3 \cdot 10^5"), ("4", r"\sqrt{16}"), (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
        ("2e", r"2 \cdot e"), ("e^2", r"\exp(2)"), ("-4", r"-\sqrt{16}"),
        (r"\frac{\pi}{4}", r"\frac14\pi"), (r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt2}"), ("3", r"\log_2 8"),
        (r"\frac{2\sqrt3}{3}", r"\frac{2}{\sqrt3}"), (r"\frac{3\sqrt2}{4}", r"\frac34\sqrt2"),
        ("1+i", "1 + 1i"), (r"\frac{-1+\sqrt{13}}{2}", r"\frac{\sqrt{13}-1}{2}"),
        (r"2-\sqrt3", r"2 - 1\sqrt3"), ("4-2i", "-2i+4"),
        (r"-\frac12+\frac{\sqrt3}{2}i", r"\frac{-1+i\sqrt3}{2}"), (r"\frac45", r"\frac{\sqrt{16}}{5}"),
        (r"(1, \sqrt2)", r"(1, \frac{2}{\sqrt2})"), (r"2^{1/3}", r"\sqrt[3]{2}"),
        (r"8\sqrt[3]{2}", r"8 \cdot 2^{1/3}"), (r"\frac{1}{16}", r"\left(\frac12\right)^4"),
        (r"36\pi \cdot 2^{2/3}", r"36 \cdot 2^{2/3} \pi"),
    ],
    "operations of the gold answer": [
        (r"6!", "720"), (r"\binom{10}{3}", "120"), (r"\binom{10}{3}", r"\frac{10!}{3!7!}"),
        (r"2 \cdot 3!", "12"), (r"2^3 \cdot 3^2", r"3^2 \cdot 2^3"), ("2^{64}-1", "-1 + 2^{64}"),
        (r"(2+2+2) \times (2+2)", "24"), (r"\csc 10", r"\frac{1}{\sin 10}"),
        (r"\arctan\frac12", r"\tan^{-1}\frac12"), (r"\frac{84}{2}", "42"),
        ("2x+4y-3=0", r"y=-\frac12x+\frac34"), (r"x^2-1", "(x-1)(x+1)"), (r"(-\infty, 3)", "x < 3"),
        (r"\begin{pmatrix} 4 \\ 6 \end{pmatrix}", r"2\begin{pmatrix} 2 \\ 3 \end{pmatrix}"),
    ],
    "notation": [
        ("5", r"\underline{5}"), ("5", r"\boldsymbol{5}"), ("5", r"\color{red}{5}"), ("42", "４２"),
        ("42", "٤٢"), ("x", r"\bm{x}"), (r"\sqrt{2}+1", r"\mathbf{1 + \sqrt{2}}"), ("-1./3", "x = -1./3"),
    ],
}  # fmt: skip

WRONG = {
    "small numbers": [
        ("10^{-9}", "0.0"), (r"\frac{1}{10^8}", "0.0"), ("2^{-30}", "0.0"), ("e^{-20}", "0.0"),
        (r"\frac{\pi}{10^7}", "0.0"), ("10^{-7}", "0.0000002"), (r"\frac{\sqrt2}{10^7}", "0.0000001"),
        ("1-10^{-9}", "1.0"), ("1-10^{-9}", "1"), ("10^{-20}", "0"), ("(10^{-9}, 1)", "(0.0, 1)"),
        ("x = 10^{-9}", "x = 0.0"), ("x = 10^{-9}", "0.0"), (r"\{10^{-9}\}", "0"), ("5.3e-9", "1e-9"),
        (r"\sqrt2 \cdot 10^{-20}", r"\sqrt3 \cdot 10^{-20}"), (r"[0, 10^{-9}]", "[0, 2e-9]"),
        (r"\begin{pmatrix} 10^{-9} \\ 1 \end{pmatrix}", r"\begin{pmatrix} 0.0 \\ 1 \end{pmatrix}"),
    ],
    "words behind a number": [
        *(("5", rf"5\text{{ {word}}}") for word in (
            "million", "thousand", "hundred", "dozen", "halves", "sixths", "or six", "or more", "and a half",
            "is not the answer", "is wrong, the answer is six", "plus one", "times six", "remainder two",
            "base six", "less than ten",
        )),
        *(("5", f"5 {word}") for word in (
            "millions", "billions", "thirds", "halves", "quarters", "lakh", "crore", "kilo", "tenths",
            "scores",
            "million", "dozen", "times six", "squared", "factorial",
        )),
        (r"5\text{ million}", "5"), ("5 million", "5 thousand"), ("6", "6m"),
    ],
    "operators": [("5", answer) for answer in (
        r"\neq 5", r"\sim 5", r"5 \mod 6", "5|6", "5...6", "5?6", r"5\%1", r"5\times", r"[5,5]", "<5",
        "5 or 6",
    )] + [("0", r"1/\infty x"), ("0", r"\frac{1}{\infty}")],
    "times": [
        (r"3\text{ p.m.}", r"3\text{ a.m.}"), ("3 p.m.", "3 a.m."), (r"\frac13", "10:30"), ("10:30", "10:31"),
    ],
    "words": [
        (r"\text{east}", "seat"), (r"\text{east}", "teas"), (r"\text{left}", r"\text{felt}"), ("no", "on"),
        ("yes", "sey"), ("ABCD", "DCBA"), (r"\text{abc}", r"\text{cab}"),
        (r"\text{A, Bob}", r"\text{A, Obb}"),
    ],
    "chains": [
        ("5", "6=5"), ("5", "0=5"), ("5", "1=2=3=5"), ("5", "x = 6 = 5"), ("x = 5", "x = 6 = 5"),
        ("1, 5", "1 = 1, 4 = 5"), ("5", r"\mho = 6 = 5"), ("y = 5", "x = 5"),
    ],
    "lists": [
        ("(1,2)", r"\{1,2\}"), ("(1,2)", "2, 1"), (r"\{1,2\}", "(1,2)"), ("2, 1", "x = 1, y = 2"),
        ("(1,2)", "(2,1)"), ("x = 1, y = 2", "2, 1"),
    ],
    "nothing left to compute": [
        ("156", r"12\cdot13"), ("156", r"12 \times 13"), ("156", "12*13"), ("42", "6(7)"), ("13", "6(7)"),
        ("5", "2+3"), ("13", "10 + 3"), ("25", "3^2+4^2"), ("0.75", r"1-\frac14"),
        ("5050", r"\sum_{n=1}^{100} n"), ("6", r"\prod_{k=1}^3 k"), ("10", r"\binom{5}{2}"),
        ("120", "5!"), ("3", r"\gcd(12,9)"), ("3", r"\operatorname{lcm}(1,3)"), ("1", r"\int_0^1 2x dx"),
        ("7", r"\lfloor 7.9\rfloor"), ("37", r"\det\begin{pmatrix}37&0\\0&1\end{pmatrix}"),
        ("37", r"\begin{vmatrix}37&0\\0&1\end{vmatrix}"), ("2", r"\lim_{x\to0}\frac{\sin 2x}{x}"),
        ("1", r"12345 \bmod 2"), ("5", r"\max(3,5)"), ("5", r"\left|-5\right|"), ("0", r"\sin \pi"),
        ("1", r"\frac{d}{dx} x"), ("42", r"\frac{84}{2}"), ("42", "84/2"),
        ("42", r"6 \cdot 7 \text{ apples}"), ("32", r"2 \cdot 16"), ("3072", r"3 \cdot 2^{10}"),
        (r"5\sqrt3", r"2\sqrt3+3\sqrt3"), (r"6\sqrt2", r"3\cdot 2\sqrt2"), ("5", r"\sqrt{3^2+4^2}"),
        (r"\{5,7\}", r"\{2+3,7\}"), ("(5,7)", "(2+3,7)"), ("5", "x = 2+3"), ("[0, 6]", r"[0, 2 \cdot 3]"),
        ("-2", "(3-2i)-(5-2i)"), ("-4-6i", "(-3-2i)-(1+4i)"), ("6+9i", "(1+2i)6-3i"),
        ("20", r"\sqrt8 \times \sqrt{50}"), ("3", r"\frac{\log 8}{\log 2}"),
        ("4", r"\sqrt{6+4\sqrt2}+\sqrt{6-4\sqrt2}"), ("-30", "(2x-5)(x+7)-(x+5)(2x-1)"),
        ("300000", r"(9 \times 10^8) \div (3 \times 10^3)"), ("10", r"\frac{10^{-2}5^0}{10^{-3}}"),
        ("2", r"\frac{2a}{b} \cdot \frac{b}{a}"), (r"(-\infty,3)", "2x<6"), ("(-3,3)", "x^2<9"),
        ("1323_4", "123_{10}"), (r"\frac{1}{6}", r"\frac12 \cdot \frac13"),
        ("12", r"\frac{1}{2} \cdot 6 \cdot 4"),
    ],
}  # fmt: skip

# What follows `Answer:`, since a box seldom has a sentence.
RIGHT_SENTENCES = [
    ("4", "The value of $x$ is $4$."), ("12", "The value of $m+n$ is $12$."),
    ("25", "The value of $x^2+y^2$ is $25$."), ("3, 4", "The value is $3$ or $4$."),
    (r"\frac12", r"The probability is \frac{1}{2}."), ("36", "She pays $36."),
    ("12", "Natalia sold 5 + 7 = 12 clips."), ("5", "There are 5 km left"), ("28", "The share is 28%."),
    ("a+b", "The value of $x$ is $a+b$."), ("8:34 p.m.", "They meet at $8:34$."),
    ("5", "It is 5, the answer is $x = 5$."),
]  # fmt: skip
WRONG_SENTENCES = [
    ("5", "the answer is 4 or the answer is 5"), ("5", "I think 4 but possibly 5"), ("5", "maybe 6 maybe 5"),
    ("6", "The number is 5 or the number is 6"), ("4", "the answer is not 4"),
    ("5", "the answer is $4$, but maybe $5$"), ("5", "it isn't the number 5"),
    ("5", "there are 5 million people"), ("5", "it is 5 times six"),
]  # fmt: skip
