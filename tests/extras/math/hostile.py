"""Answers that no honest policy writes, generated in kinds. None of them is GOLD."""

GOLD = "987"
CANARY = "reward-canary"  # in payloads: the path that they would create

_CODE = (
    "__import__('os').system('touch reward-canary')", "__import__('pathlib').Path('reward-canary').touch()",
    "open('reward-canary', 'w').write('x')", "exec(\"open('reward-canary','w')\")",
    "eval(\"open('reward-canary','w')\")", "compile('open(1)', 'x', 'exec')",
    "().__class__.__bases__[0].__subclasses__()", "(lambda: open('reward-canary','w'))()",
    "[open('reward-canary','w') for x in (1,)]",
    "Symbol('x').__class__.__init__.__globals__['__builtins__']['open']('reward-canary','w')",
    'S(\'open("reward-canary","w")\')', "sympify(\"__import__('os').mknod('reward-canary')\")",
    'lambdify([], \'open("reward-canary","w")\')()', "N.__globals__['os'].system('touch reward-canary')",
    "globals()['__builtins__']", "breakpoint()", "exit()", "import os; os.system('touch reward-canary')",
    "@__import__('os').system('touch reward-canary')", "os.system(chr(116)+chr(111))",
    "$(touch reward-canary)", "`touch reward-canary`", "; touch reward-canary #", "| tee reward-canary",
    "\\write18{touch reward-canary}", "\\input{reward-canary}", "\\immediate\\openout1=reward-canary",
)  # fmt: skip
_AROUND_CODE = (
    "{}", r"\boxed{{{}}}", "Answer: {}", r"\boxed{{\text{{{}}}}}", r"\boxed{{\operatorname{{{}}}(1)}}",
    r"\boxed{{x_{{{}}} + 1}}", r"\boxed{{\sum_{{\mathrm{{{}}}=1}}^{{3}} 1}}",
    r"\boxed{{\int_0^1 \mathrm{{{}}} dx}}", r"\boxed{{\gcd({}, 2)}}",
)  # fmt: skip
_LARGE = (
    "9**9**9", "9^{9^9}", "9^9^9^9", "(9^9)^{9^9}", "10^{10^{10}}", "-10^{10^{10}}", "{10^{10}}^{10^{10}}",
    "2^{2^{2^{2^{2^{2}}}}}", "2^{-2^{60}}", "10000000!", "(9!)!", "((9!)!)!", "3!!!!!!",
    r"\binom{10^9}{5 \cdot 10^8}", r"\Gamma(10^9)", r"\Gamma(10^{10})", "1e999999999", "1E99999",
    "1e-999999999", r"1.5 \times 10^{999999999}", r"\sqrt{9^{9^9}}", r"\sqrt[9^{9^9}]{2}",
    r"\frac{1}{9^{9^9}}", r"\frac{9^{9^9}}{9^{9^9}}", r"9^{9^9} \bmod 7", r"\log_2(2^{2^{40}})",
    r"\gcd(9^{9^9}, 3)", r"\gcd(2^{999999}, 3^{999999})", r"e^{e^{e^{e^{e}}}}", r"\exp(\exp(\exp(100)))",
    r"\cosh(10^{10})", r"\sin(10^{10^{10}})", r"\lfloor e^{10^{9}} \rfloor", r"\lfloor \pi^{100000} \rfloor",
    "(x+1)^{1000000}", "(x+y+z)^{300}", "(x+1)^{999}(x-1)^{999}", r"\sum_{n=1}^{10^9} \frac{1}{n}",
    r"\sum_{n=1}^{9999} n!", r"\prod_{n=1}^{10^{12}} n", r"\prod_{n=1}^{9000} n^n",
    r"\sum_{i=1}^{900}\sum_{j=1}^{900}\sum_{k=1}^{900} i^j", r"\int_0^{9^{9^9}} x dx",
    r"\int \frac{\sin(x^x)}{x^{\cos x}} dx", r"\int_0^1 x^{x^x} dx", r"\lim_{x \to \infty} x^{x^{x^x}}",
    r"\lim_{x \to 0} \frac{\sin(\tan x) - \tan(\sin x)}{x^7}", "x^{99} - 3x^{98} + x - 1 = 0", "0.1^{10^9}",
    "7^{7^{7}} - 7^{7^{7}} + 1", r"\sqrt{\sqrt{\sqrt{2^{2^{100}}}}}", "99999^{99999}",
    "12345678901234567890^{1234567}", r"x \in \mathbb{R}^{10^{9}}", r"\operatorname{zeros}(100000,100000)",
    r"\operatorname{eye}(100000)", r"\operatorname{ones}(99999,99999)", r"\operatorname{diag}(1,2)",
    r"\operatorname{eig}(x)", r"\operatorname{rank}(10^9)",
    r"\det \begin{pmatrix} x & y \\ z & 10^{10^{10}} \end{pmatrix}",
    r"\begin{vmatrix} a & b & c \\ d & e & f \\ g & h & 9^{9^9} \end{vmatrix}",
    r"\begin{pmatrix} 2 & 1 \\ 1 & 1 \end{pmatrix}^{10^{9}}", r"\frac{d}{dx} x^{x^{x^{x^{x}}}}",
    r"\arctan(\tan(10^{300}))", "1/(10^{-10^{10}})",
)  # fmt: skip
_NO_NUMBER = (
    "nan", "NaN", "-nan", "inf", "-inf", "Infinity", "infinity", r"\infty", r"-\infty", "oo", "zoo", "1/0",
    "0/0", r"\frac{1}{0}", r"\frac{0}{0}", r"\infty - \infty", r"0 \cdot \infty", r"0^{-1}", r"\log 0",
    r"\log_0 0", r"\log_1 4", r"\tan(\frac{\pi}{2})", "None", "null", "undefined", "True", "False",
    "NotImplemented", "...", "-", "+", "=", "==", "4 == 4 or 1", "4 if 1 else 5", "<4", "∅", r"\emptyset",
    r"\varnothing", "{}", "()", "[]",
)  # fmt: skip
_FORMAT = (
    "{}", "{0}", "{0.__class__}", "{x!r:>1000000000}", "{:1000000000}", "%s", "%n%n%n", "%1000000000d",
    "%(x)s", "${jndi:ldap://127.0.0.1/a}", "#{4}", "<%= 4 %>", "{{4}}", "{% raw %}", "<script>4</script>",
    "'; DROP TABLE problems; --", "\x1b[2J", "\x00", "4\x00", "\\x34", "\\u0034", "\\N{DIGIT FOUR}",
    "../../../../etc/passwd", "file:///etc/passwd", "C:\\con\\con", "\r\n\r\n", "\\\\\\\\", "&#52;", "%34",
    "0x4", "0b100", "0o4", "4_", "_4", "4e", "e4", "4j",
)  # fmt: skip
_LOOK_ALIKES = (
    "四", "٤٤", "४", "Ⅳ", "④", "⑷", "⁴", "₄", "𝟒", "𝟜", "¼", "4\u0301", "\u202e4", "4\u200b4", "\ufeff4",
    "４４", "ꓤ", "Ꮞ", "४.०", "\ud800", "4\udfff", "𓏾", "\\bоxed{4}", "\uff3cboxed{4}", "ｂoxed{4}",
    "\\boxed｛4｝", "\\Boxed{4}", "\\boxed(4)", "\\boxed[4]", "\\bo\u200bxed{4}", "Αnswer: 4", "аnswer: 4",
)  # fmt: skip
_UNCLOSED = (
    r"\boxed{4", r"\boxed{", r"\boxed", r"\boxed{\frac{4}{1}", r"\boxed{{4}", r"\boxed{\{4}", r"\boxed{4\}",
    r"\fbox{\boxed{4", r"\frac{4}{", r"\frac{", r"\frac", r"\sqrt", r"\sqrt[", r"\sqrt[2]{", "(4", "[4",
    r"\{4", r"\left(4", r"\left\{4\right.", "4)", "4}", r"\begin{pmatrix} 4",
    r"\begin{pmatrix} 4 \\ 4 & 4 \end{pmatrix}", r"\end{pmatrix}", r"\begin{align} 4", "$4$4$", "$$4$",
    r"\(4", r"\[4", r"\text{4 ", "4_{", "4^{", "4^", "4_", "|4", r"\sum_{n=", r"\int_0^", r"\lim_{x",
    r"\binom{4}",
)  # fmt: skip


def hostile_answers():
    """Returns name and text of each hostile answer; no name comes twice."""
    for i, code in enumerate(_CODE):
        for j, around in enumerate(_AROUND_CODE):
            yield f"code {i} in form {j}", around.format(code)
    groups = {
        "large": _LARGE, "no number": _NO_NUMBER, "format": _FORMAT, "look-alike": _LOOK_ALIKES,
        "unclosed": _UNCLOSED,
    }  # fmt: skip
    for name, texts in groups.items():
        for i, text in enumerate(texts):
            yield f"{name} {i} bare", text
            if name in ("large", "no number"):
                yield f"{name} {i} boxed", rf"\boxed{{{text}}}"
    yield from _nested()
    yield from _long()


def _nested():
    root, fraction = r"\sqrt{", r"\frac{1}{"
    for depth in (30, 150, 400, 950, 5000):
        yield f"{depth} parentheses", rf"\boxed{{{'(' * depth}5{')' * depth}}}"
        yield f"{depth} brackets", rf"\boxed{{{'[' * depth}5{']' * depth}}}"
        yield f"{depth} braces", rf"\boxed{{{'{' * depth}5{'}' * depth}}}"
        yield f"{depth} minus signs", rf"\boxed{{{'-' * depth}5}}"
        yield f"{depth} factorials", rf"\boxed{{5{'!' * depth}}}"
        yield f"{depth} roots", rf"\boxed{{{root * (depth // 8 + 1)}5{'}' * (depth // 8 + 1)}}}"
        yield f"{depth} fractions", rf"\boxed{{{fraction * (depth // 10)}5{'}' * (depth // 10)}}}"
        yield f"{depth} powers", rf"\boxed{{{'2^{' * (depth // 4)}5{'}' * (depth // 4)}}}"
        unions = r"\cup ".join(f"[{i},{i + 1})" for i in range(depth // 12))
        yield f"{depth} unions", rf"\boxed{{{unions}}}"
        yield f"{depth} bars", rf"\boxed{{{'|' * depth}5{'|' * depth}}}"


def _long():
    """Some of a megabyte, some just as long as an answer may be."""
    units = {
        "ones": "1", "letters": "x", "boxes opened": r"\boxed{", "boxes": r"\boxed{1}",
        "rows of boxes": r"\boxed{1}, ", "braces": "{", "closed": "}", "dollars": "$", "dollar pairs": "$ $",
        "spaces": " ", "backslashes": "\\", "sums": "1+", "powers": "2^", "commas": "1,", "lines": "\n",
        "answers": "Answer: 1\n", "empty answers": "answer: ", "final": "final answer is ",
        "hashes": "#### 1\n", "hash marks": "####", "emoji": "😀", "zeros": "0", "fractions": r"\frac{1}{2}",
        "texts": r"\text{", "ands": "1 and ", "units": "1 cm ", "percents": "1%", "dots": ".", "quotes": "'",
        "integrals": r"\int ", "dollar sums": "$1$ and ", "unions": r"[1,2) \cup ", "equals": "x=",
        "primes": "x'", "stars": "*", "nulls": "\x00", "bang": "!", "colons": ":", "bars": "|",
    }  # fmt: skip
    for name, unit in units.items():
        yield f"a megabyte of {name}", unit * (1_000_000 // len(unit))
        yield f"an answer full of {name}", rf"\boxed{{{unit * (1900 // len(unit))}}}"
