"""Said in Chinese: whether a sentence forbids, requires or prefers something for good.

Rule 1: patterns are of simplified signs; whoever asks has replaced traditional ones.
"""

from __future__ import annotations

import re

_QUESTION = re.compile(
    "[吗呢么]$|为什么|为何|怎么|怎样|是否|是不是|要不要|能不能|可不可以|该不该|应不应该|如何|什么时候|哪个|哪些"
    "|会不会|好不好"
)
_REPORTED = re.compile(
    "(?:文档|日志|报错|错误|提示|编译器|同事|老板|他|她|他们|评论|文章|系统|消息)[^，。]{0,6}"
    "(?:说|写着|写道|显示|提示|告诉|提到|要求我)"
)
_ONE_TIME = re.compile(
    "先(?:别|不要|不用)|暂时|这次|这一次|今天|明天|目前|此刻|(?<!从)现在(?!起|开始)|刚才|等一下|一会"
)
_FROM_NOW = re.compile(
    "从现在(?:起|开始)|从今(?:以后|往后|天起)|今后|往后|以后(?:都|请|要|不|别|一律|每次|只|所有|务必|必须|用)"
)
_DO = (
    "(?:用|使用|改|修改|更改|改动|动|碰|编辑|写|提交|推送|合并|读|运行|执行|安装|添加|新增|引入|依赖|访问|删除|创建|部署"
    "|回答|回复|保持|检查|遵守|遵循|通过|加|调用|发布|覆盖|重命名|升级|打印|输出|上传|泄露|硬编码|跳过|关闭|禁用|格式化|重构"
    "|直接|擅自|随意|把|在|以|对|将|给)"
)
_LANGUAGE = "(?:中文|英文|英语|汉语|简体中文|繁体中文|日语|德语|法语)(?:来)?(?:回答|回复|交流|沟通|写|解释|对话)"
_ANYWHERE = re.compile(
    "|".join(
        (
            "永远(?:不要|别|不能|不得|不准)",
            "绝(?:对)?(?:不要|不能|不可|不允许|不得|禁止)",
            "决不(?:能|要|可)|千万(?:不要|别)|切勿|请勿|严禁",
            "一律(?:不|用|使用|禁止|必须|以|采用)",
            "(?<![记舍怪恨巴来要见认懂顾使])不得(?![不已了])",
            "不许|不准(?!确|的|备)",
            "(?:所有|每个|每次|任何|每一|都|均|前|后|代码|你)必须(?!说|承认)",
            "(?:所有|每个|每次|任何|都|前|后).{0,12}(?:务必|一定要)",
            "每次.{1,16}(?:都要|都必须|都得|前请|前先|后请|前要|后要|前都|后都)",
            "未经.{0,8}(?:同意|许可|允许|批准|确认).{0,20}(?:不|禁|勿|别)",
            "前.{0,6}(?:先问我|先征求|征得|先跟我确认|先和我确认|先与我确认|经过我)",
            "(?:请|都|一律|要)用" + _LANGUAGE,
            "优先(?:使用|用|选择|考虑|采用)|尽量(?:用|使用|不要|不|别|避免|保持|少)|宁可",
            "我(?:更|比较)?(?:偏好|倾向于|喜欢使?用|希望你(?:始终|以后|总是|不要|每次))",
        )
    )
)
_CLAUSES = re.compile("[，,；;：:、（(]")
_CLAUSE = re.compile(
    "|".join(
        (
            "(?:不要|别|不能|不可以|不允许|禁止|勿)(?:再|去|自行|自己)?(?:对)?" + _DO,
            "禁止|不允许",
            "(?:要|应|应该|必须)?(?:始终|总是|永远)(?:要|都)?" + _DO,
            "必须(?:始终|先|都)?" + _DO,
            "就?(?:只能|只准|只许|只可以|只允许|只|仅)(?:允许|能|可)?"
            "(?:用|使用|改|修改|动|碰|编辑|写|提交|读|运行|安装|依赖|访问|在|回答)(?!了|过)",
            "(?:尽量)?避免",
            "都?用" + _LANGUAGE,
            "(?:始终)?保持.*(?:兼容|简短|简洁|一致|同步|不变|绿色)",
        )
    )
)
_LEAD = re.compile(
    r"(?:请|麻烦|另外|还有|而且|并且|但是|但|所以|因此|也|都|就|你|我们|记住|注意|重要|规则|再次强调|同时|然后|最好|可以的话"
    r"|[\s\d.)、*#-])+"
)
_WISH = re.compile("(?:不要|别)(?:忘|担心|紧|急|着急|的|人|客气|误会|闹|管|说)")


def is_chinese_rule(sentence: str) -> bool:
    """Whether a sentence, in simplified signs and without its quotes, is a rule."""
    words = "".join(sentence.split()).rstrip("。.!！")
    if _QUESTION.search(words) or _REPORTED.search(words):
        return False
    if _FROM_NOW.search(words):
        return True
    if _ONE_TIME.search(words):
        return False
    if _ANYWHERE.search(words):
        return True
    return any(
        _CLAUSE.match(clause) and not _WISH.match(clause) for clause in map(_without_lead, _CLAUSES.split(words))
    )


def _without_lead(clause: str) -> str:
    lead = _LEAD.match(clause)
    return clause if lead is None else clause[lead.end() :]
